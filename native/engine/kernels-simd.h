// All kernels of the engine for the instruction set that a file is compiled for.
#pragma once

#include "dense_conv-simd.h"
#include "integer_neuron-simd.h"
#include "pair_conv-simd.h"
#include "pair_lists-simd.h"
