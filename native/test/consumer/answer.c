/* answer NET.lbq: what the network answers to one black image, one logit to a line. */
#include <lbq.h>
#include <lbq_model.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  lbq_model* model = NULL;
  lbq_complaint complaint;
  if (argc != 2 || lbq_model_open(argv[1], NULL, &model, &complaint) != LBQ_MODEL_OK) {
    fprintf(stderr, "%s\n", argc == 2 ? complaint.text : "answer NET.lbq");
    return 1;
  }
  lbq_model_facts facts;
  lbq_model_describe(model, &facts);
  const int64_t instants = facts.takes_frames ? facts.timesteps : 1;
  const size_t num_inputs = (size_t)(instants * facts.channels * facts.height * facts.width);
  const size_t num_logits = (size_t)(facts.num_logits * (facts.gives_sequence ? facts.timesteps : 1));
  uint8_t* inputs = calloc(num_inputs, 1);
  int64_t* logits = calloc(num_logits, sizeof *logits);
  const lbq_model_status status = lbq_model_run(model, 1, inputs, num_inputs, logits, num_logits, &complaint);
  if (status == LBQ_MODEL_OK)
    for (size_t i = 0; i < num_logits; ++i) printf("%lld\n", (long long)logits[i]);
  else
    fprintf(stderr, "%s\n", complaint.text);
  free(inputs);
  free(logits);
  lbq_model_free(model);
  fprintf(stderr, "%s\n", lbq_isa());
  return status != LBQ_MODEL_OK;
}
