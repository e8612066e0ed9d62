// What flows through a bundle's network: order, shapes, time, levels and currents, all checked. Nothing is
// computed and no tensor is touched: the manifest's shapes must fit by themselves.
#pragma once

#include "manifest.h"

namespace lbq {

// Fill in every node's inputs, shapes, window and levels, or throw_error.
void check_graph(Manifest& manifest);

}  // namespace lbq
