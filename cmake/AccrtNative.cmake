# build/lib/_native.abi3.so: the C part of the Python package that makes calls quick
# (python/native). It uses CPython's stable ABI, so one file serves every CPython from 3.9 on, and
# is linked to nothing: the library's functions come through its table. It needs CPython's headers
# (Debian: libpython3-dev). Without them the package works all the same, and slower.
set(ACCRT_PYTHON "" CACHE FILEPATH "The Python whose headers are used; empty: .venv's, or python3")
set(ACCRT_PYTHON_INCLUDE "")
foreach(candidate "${ACCRT_PYTHON}" "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
  if(candidate AND NOT ACCRT_PYTHON_INCLUDE)
    execute_process(COMMAND ${candidate} -c "import sysconfig; print(sysconfig.get_path('include'))"
                    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(found AND EXISTS "${found}/Python.h")
      set(ACCRT_PYTHON_INCLUDE "${found}")
    endif()
  endif()
endforeach()
if(NOT ACCRT_PYTHON_INCLUDE OR ACCRT_SANITIZE STREQUAL "fuzzer" OR ACCRT_SANITIZE STREQUAL "coverage")
  message(STATUS "accrt._native is left out: it needs Python.h (Debian: libpython3-dev). Everything else builds, and calls from Python "
                 "are slower.")
  add_custom_target(accrt_native)
  return()
endif()
file(GLOB ACCRT_NATIVE_SOURCES CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/python/native/*.c")
add_library(accrt_native MODULE ${ACCRT_NATIVE_SOURCES})
accrt_library_objects(accrt_native)
target_include_directories(accrt_native SYSTEM PRIVATE "${ACCRT_PYTHON_INCLUDE}")
set_target_properties(accrt_native PROPERTIES PREFIX "" OUTPUT_NAME "_native" SUFFIX ".abi3.so")
target_link_options(accrt_native PRIVATE -Wl,--gc-sections -Wl,-z,relro -Wl,-z,now -Wl,--build-id=sha1)
# torch's exceptions pass through the kernels of this file alone: it has the tables for that.
set_source_files_properties(python/native/torch_shim.c PROPERTIES COMPILE_OPTIONS "-fexceptions;-fasynchronous-unwind-tables")
