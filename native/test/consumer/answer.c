/* answer NET.lbq: what the network answers to one black image, one logit to a line. */
#include <lbq.h>
#include <lbq_model.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  lbq_model* model = NULL;
  lbq_error_message message;
  if (argc != 2 || lbq_model_open(argv[1], NULL, &model, &message) != LBQ_MODEL_OK) {
    fprintf(stderr, "%s\n", argc == 2 ? message.text : "answer NET.lbq");
    return 1;
  }
  lbq_model_info info;
  lbq_model_get_info(model, &info);
  const int64_t instants = info.takes_frames ? info.timesteps : 1;
  const size_t num_inputs = (size_t)(instants * info.channels * info.height * info.width);
  const size_t num_logits = (size_t)(info.num_logits * (info.gives_sequence ? info.timesteps : 1));
  uint8_t* inputs = calloc(num_inputs, 1);
  int64_t* logits = calloc(num_logits, sizeof *logits);
  const lbq_model_status status = lbq_model_run(model, 1, inputs, num_inputs, logits, num_logits, &message);
  if (status == LBQ_MODEL_OK)
    for (size_t i = 0; i < num_logits; ++i) printf("%lld\n", (long long)logits[i]);
  else
    fprintf(stderr, "%s\n", message.text);
  free(inputs);
  free(logits);
  lbq_model_free(model);
  fprintf(stderr, "%s\n", lbq_isa());
  return status != LBQ_MODEL_OK;
}
