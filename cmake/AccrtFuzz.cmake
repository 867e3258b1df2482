# Fuzz targets, tests/fuzz/NAME_fuzz.c. With -DACCRT_SANITIZE=fuzzer (clang) each is linked with
# libFuzzer into fuzz/NAME (`./dev fuzz`); else with replay.c into tests/fuzz.NAME, which CTest runs
# over tests/fuzz/corpus/NAME.
file(GLOB ACCRT_FUZZ_TARGETS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/fuzz/*_fuzz.c")
add_custom_target(accrt_fuzz)
if(NOT TARGET accrt_text)
  list(FILTER ACCRT_FUZZ_TARGETS EXCLUDE REGEX "/(yaml|dump)_fuzz\\.c$")
endif()
if(NOT ACCRT_CUDA_BUILT)
  list(FILTER ACCRT_FUZZ_TARGETS EXCLUDE REGEX "/device_image_fuzz\\.c$")
endif()
foreach(source IN LISTS ACCRT_FUZZ_TARGETS)
  get_filename_component(name "${source}" NAME_WE)
  string(REGEX REPLACE "_fuzz$" "" name "${name}")
  set(corpus "${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name}")
  if(name MATCHES "^(dump|trust)$") # bundles: those of the container's target, and the golden ones
    set(corpus "${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/container" "${PROJECT_SOURCE_DIR}/tests/golden/0.3")
  endif()
  add_executable(fuzz.${name} "${source}" "${PROJECT_SOURCE_DIR}/tests/fuzz/counts.c")
  target_include_directories(fuzz.${name} PRIVATE "${PROJECT_SOURCE_DIR}"
                             "${PROJECT_SOURCE_DIR}/include")
  if(name MATCHES "^(yaml|dump)$")
    target_link_libraries(fuzz.${name} PRIVATE accrt_text)
  endif()
  target_link_libraries(fuzz.${name} PRIVATE accrt_write_static accrt_flags)
  add_dependencies(accrt_fuzz fuzz.${name})
  if(ACCRT_SANITIZE STREQUAL "fuzzer")
    set_target_properties(fuzz.${name} PROPERTIES OUTPUT_NAME ${name}
                          RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz")
    target_link_options(fuzz.${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(fuzz.${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests/fuzz/replay.c")
    set_target_properties(fuzz.${name} PROPERTIES
                          RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
    accrt_ctest(fuzz.${name} "${source}" "tests/fuzz" ${corpus})
  endif()
endforeach()
# Targets that make their inputs of choices also run from a seed, for as long as it takes (`./dev
# soak`); a short run of each is a test.
foreach(name oracle)
  add_executable(soak.${name} "${PROJECT_SOURCE_DIR}/tests/fuzz/${name}_fuzz.c"
                 "${PROJECT_SOURCE_DIR}/tests/fuzz/counts.c" "${PROJECT_SOURCE_DIR}/tests/fuzz/soak.c")
  target_include_directories(soak.${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
  if(TARGET accrt_write_static)
    target_link_libraries(soak.${name} PRIVATE accrt_write_static)
  endif()
  target_link_libraries(soak.${name} PRIVATE accrt_static accrt_flags)
  set_target_properties(soak.${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  if(NOT ACCRT_SANITIZE STREQUAL "fuzzer")
    accrt_ctest(soak.${name} "${PROJECT_SOURCE_DIR}/tests/fuzz/${name}_fuzz.c" "tests/fuzz" --seed 1 --goal 50000)
  endif()
endforeach()
