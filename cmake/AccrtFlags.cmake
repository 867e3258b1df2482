# Compiler and linker flags that everything built in the tree shares. Nothing here reaches users of
# the installed package: it hangs on one interface target that is never exported.
add_library(accrt_flags INTERFACE)

target_compile_options(accrt_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wstrict-prototypes -Wvla)
# Defined empty, so that a source that says `#define _GNU_SOURCE` itself stays warning-free.
target_compile_definitions(accrt_flags INTERFACE "_GNU_SOURCE=")
if(ACCRT_WERROR)
  target_compile_options(accrt_flags INTERFACE -Werror)
endif()

if(ACCRT_ASSERTIONS)
  target_compile_definitions(accrt_flags INTERFACE ACCRT_ASSERTIONS=1)
endif()

if(ACCRT_SANITIZE STREQUAL "address")
  set(ACCRT_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(ACCRT_SANITIZE STREQUAL "thread")
  set(ACCRT_SANITIZE_FLAGS -fsanitize=thread)
elseif(ACCRT_SANITIZE STREQUAL "fuzzer")
  set(ACCRT_SANITIZE_FLAGS -fsanitize=fuzzer-no-link,address,undefined
      -fno-sanitize-recover=undefined)
elseif(ACCRT_SANITIZE STREQUAL "coverage")
  set(ACCRT_SANITIZE_FLAGS -fprofile-instr-generate -fcoverage-mapping)
elseif(ACCRT_SANITIZE)
  message(FATAL_ERROR "ACCRT_SANITIZE is '${ACCRT_SANITIZE}'; known: address, thread, fuzzer "
                      "(clang), coverage (clang), or empty")
endif()
if(ACCRT_SANITIZE)
  target_compile_options(accrt_flags INTERFACE ${ACCRT_SANITIZE_FLAGS} -fno-omit-frame-pointer)
  target_link_options(accrt_flags INTERFACE ${ACCRT_SANITIZE_FLAGS})
  # Sub-allocations that share a mapping hide overruns from the sanitizers.
  target_compile_definitions(accrt_flags INTERFACE ACCRT_POOL_ONE_MAPPING_PER_ALLOCATION=1)
endif()
