# build/bin/accrt-sandbox, which runs a bundle's functions for `accx run --sandbox` and Python's
# sandbox=True. It has the library inside: once it is confined it can open nothing.
if(NOT TARGET accrt_static OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  return()
endif()
add_executable(accrt-sandbox tools/sandbox/main.c tools/sandbox/lockdown.c)
target_link_libraries(accrt-sandbox PRIVATE accrt_static accrt_flags)
