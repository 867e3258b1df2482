# build/bench/bench_*: the benchmarks written in C, on the public headers and the shared library.
# bench/run.py finds and runs them.
if(NOT TARGET accrt OR ACCRT_SANITIZE)
  return()
endif()
file(GLOB ACCRT_BENCH_SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/bench_*.c")
foreach(source IN LISTS ACCRT_BENCH_SOURCES)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(${name} "${source}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bench")
  target_link_libraries(${name} PRIVATE accrt accrt_flags m)
endforeach()
# Calls of functions are measured on the bundle that the tests run.
if(TARGET bench_call AND TARGET accrt_test_bundles)
  add_dependencies(bench_call accrt_test_bundles)
  target_compile_definitions(bench_call PRIVATE ACCRT_BENCH_BUNDLE="${ACCRT_TEST_DATA}/program.accx")
endif()
