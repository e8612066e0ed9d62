# find_package(lbq) gives lbq::model (lbq_model.h: bundles, read and run) and lbq::lbq (lbq.h: the neuron's kernels).
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/lbq-targets.cmake")
