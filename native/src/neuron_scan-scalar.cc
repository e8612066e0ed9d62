// Declared neurons one value at a time: the reference.
#define LBQ_LANES 1
#include "neuron_scan.h"

namespace lbq {

const NeuronKernels scalar::kNeuron = {forward, backward};

}  // namespace lbq
