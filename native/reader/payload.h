// The tensors of a bundle: a safetensors payload whose table must agree with the manifest, and their values.
#pragma once

#include "container.h"
#include "manifest.h"

namespace lbq {

// Give every node views of its tensors, or throw ReadError.
void attach_tensors(Manifest& manifest, const Bundle& bundle);

// Throw unless weights fit their bits and thresholds never fall.
void check_values(const Node& node);

}  // namespace lbq
