/* tests/fuzz/index_fuzz.c - the index of a sharded safetensors file: any text beside small files, and beside names that are no regular
 * file of the folder: a link, a FIFO that nobody writes to, a folder, a device. What is accepted is used, every tensor and byte. */
#include "tests/fuzz/files.h"
#include "tests/fuzz/mutate_text.h"
#include "tests/fuzz/weights_use.h"

static void put_tensors(const char* name, const char* header, size_t data_bytes) {
  uint8_t file[512] = {0};
  const uint64_t header_bytes = strlen(header);
  memcpy(file, &header_bytes, sizeof header_bytes);
  memcpy(file + 8, header, header_bytes);
  fuzz_write_file(fuzz_path(name), file, 8 + (size_t)header_bytes + data_bytes);
}

static void lay_out_files(void) {
  static int done;
  if (done)
    return;
  done = 1;
  put_tensors("1.st",
              "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
              "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}",
              9);
  put_tensors("2.st", "{\"c\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
  put_tensors("bad.st", "{\"a\":{}}", 0);
  fuzz_require(symlink("1.st", fuzz_path("link")) == 0);
  fuzz_require(symlink("/dev/zero", fuzz_path("zero")) == 0);
  fuzz_require(mkfifo(fuzz_path("fifo"), 0600) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  accrt_weights_t* weights;
  lay_out_files();
  const char* path = fuzz_path("model.safetensors.index.json");
  fuzz_write_file(path, data, size);
  ++fuzz_inputs;
  if (accrt_weights_open_path(fuzz_instance(), path, NULL, &weights) == ACCRT_OK) {
    accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
    fuzz_require(accrt_weights_info(weights, &info) == ACCRT_OK);
    ++fuzz_accepted;
    if (info.kind == ACCRT_WEIGHTS_KIND_SAFETENSORS)
      fuzz_use_weights(weights);
    accrt_weights_release(weights);
  }
  return 0;
}
