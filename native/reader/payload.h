// The tensors of a bundle: a safetensors payload. Its table must say what the manifest says.
#pragma once

#include "container.h"
#include "manifest.h"

namespace lbq {

// Give every node views of its numbers, or throw_error.
void attach_tensors(Manifest& manifest, const Bundle& bundle);

}  // namespace lbq
