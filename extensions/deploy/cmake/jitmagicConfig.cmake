include(CMakeFindDependencyMacro)
find_dependency(Torch)
include(${CMAKE_CURRENT_LIST_DIR}/jitmagicTargets.cmake)
