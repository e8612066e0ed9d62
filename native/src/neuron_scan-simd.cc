// Declared neurons on vectors, compiled once per instruction set (native/compile_flags.txt).
#include "neuron_scan.h"

namespace lbq {

const NeuronKernels LBQ_ISA::kNeuron = {forward, backward};

}  // namespace lbq
