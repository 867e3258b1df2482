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
  target_link_libraries(${name} PRIVATE accrt_serve accrt_write accrt accrt_flags m)
endforeach()
# The digest that the library is measured beside is compiled as the library's.
set_source_files_properties(bench/bench_open.c PROPERTIES COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-O3>")
# Calls of functions are measured on the bundle that the tests run.
foreach(name bench_call bench_stream)
  if(TARGET ${name} AND TARGET accrt_test_bundles)
    add_dependencies(${name} accrt_test_bundles)
    target_compile_definitions(${name} PRIVATE ACCRT_BENCH_BUNDLE="${ACCRT_TEST_DATA}/program.accx")
  endif()
endforeach()
# build/bench/gpu_*: the benchmarks on a GPU, each beside the raw driver, whose entry points they
# look up themselves.
if(ACCRT_CUDA_BUILT)
  file(GLOB ACCRT_GPU_BENCH_SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/gpu/*.c")
  foreach(source IN LISTS ACCRT_GPU_BENCH_SOURCES)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(gpu_${name} "${source}")
    set_target_properties(gpu_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bench" C_EXTENSIONS ON)
    target_include_directories(gpu_${name} SYSTEM PRIVATE "${ACCRT_CUDA_INCLUDE_DIR}")
    target_link_libraries(gpu_${name} PRIVATE accrt Threads::Threads ${CMAKE_DL_LIBS} m)
    target_compile_options(gpu_${name} PRIVATE -O2 -Wall -Wextra)
  endforeach()
endif()
