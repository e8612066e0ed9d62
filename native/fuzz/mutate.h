// Mutants of bundles that know what a bundle is: JSON values exchanged, numbers changed, and sealed again.
#pragma once

#include <random>
#include <string>
#include <vector>

using Rng = std::mt19937_64;

// A mutant of one of the files.
std::string mutate(const std::vector<std::string>& files, Rng& rng);
