/* loader/weights_rules.h - every check of foreign weight files, by format and number.
 * docs/weights.md has the same list. A number is never reused for another check. A refusal ends
 * with, for example, "(gguf rule 7)"; tests provoke each.
 *
 * X(format, name, number, status, text)
 */
#ifndef ACCRT_LOADER_WEIGHTS_RULES_H_
#define ACCRT_LOADER_WEIGHTS_RULES_H_

/* clang-format off */
#define ACCX_WEIGHTS_RULE_LIST(X)                                                                                               \
  X(safetensors, HEADER_SIZE, 1, INVALID_FORMAT, "The file begins with the size of its header, 2 to 100,000,000 bytes that lie in the file.") \
  X(safetensors, HEADER_JSON, 2, INVALID_FORMAT, "The header is one JSON object, with nothing but white space behind it.")      \
  X(safetensors, METADATA, 3, INVALID_FORMAT, "`__metadata__` is there at most once: an object of strings, no key twice, at most 65,536.") \
  X(safetensors, TENSOR_NAME, 4, INVALID_FORMAT, "A tensor's name has 1 to 65,535 bytes; no two have the same.")                \
  X(safetensors, TENSOR_FIELDS, 5, INVALID_FORMAT, "A tensor has `dtype`, `shape` and `data_offsets`, each once, and nothing else.") \
  X(safetensors, DTYPE, 6, VERSION_MISMATCH, "A tensor's `dtype` is known.")                                                    \
  X(safetensors, SHAPE, 7, INVALID_FORMAT, "A shape has at most 8 sizes, whole numbers whose product (zeros left out) and bytes are below 2^63.") \
  X(safetensors, RANGE, 8, INVALID_FORMAT, "`data_offsets` are two whole numbers, ascending, inside the file.")                 \
  X(safetensors, SIZE, 9, INVALID_FORMAT, "A tensor has exactly the bytes of its shape, whole ones.")                           \
  X(safetensors, COVER, 10, INVALID_FORMAT, "Tensors follow one another in the data without gap or overlap, and cover it.")     \
  X(index, SIZE, 1, INVALID_FORMAT, "An index has at most 100,000,000 bytes.")                                                  \
  X(index, JSON, 2, INVALID_FORMAT, "It is one JSON object, at most 16 deep, with one `weight_map`: an object of strings, not empty.") \
  X(index, FILE_NAME, 3, INVALID_FORMAT, "A file's name is bare: 1 to 255 bytes without `/`, not `.` or `..`.")                 \
  X(index, FILE_COUNT, 4, INVALID_FORMAT, "It names at most 1,024 files.")                                                      \
  X(index, FILE_KIND, 5, INVALID_FORMAT, "The files that it names are safetensors files.")                                      \
  X(index, TENSOR, 6, INVALID_FORMAT, "Each tensor that it names is in the file that it names, and named once.")                \
  X(gguf, VERSION, 1, VERSION_MISMATCH, "The version is 2 or 3, little-endian.")                                                \
  X(gguf, COUNTS, 2, INVALID_FORMAT, "There are no more tensors and keys than the file has room for, and below 2^24 of each.")  \
  X(gguf, HEADER_SIZE, 3, INVALID_FORMAT, "Keys and tensor records lie in the file, in its first 256 MiB.")                     \
  X(gguf, STRING, 4, INVALID_FORMAT, "A string lies in the header; keys, names and values that are strings are UTF-8 without NUL.") \
  X(gguf, KEY, 5, INVALID_FORMAT, "A key has 1 to 65,535 bytes; no two are the same.")                                          \
  X(gguf, VALUE_TYPE, 6, INVALID_FORMAT, "A value's type is known; arrays have no arrays in them.")                             \
  X(gguf, VALUE_RANGE, 7, INVALID_FORMAT, "An array lies in the header; a boolean is 0 or 1.")                                  \
  X(gguf, ALIGNMENT, 8, INVALID_FORMAT, "`general.alignment` is a u32, a power of two from 8 to 65,536.")                       \
  X(gguf, TENSOR_NAME, 9, INVALID_FORMAT, "A tensor's name has 1 to 65,535 bytes; no two have the same.")                       \
  X(gguf, DIMENSIONS, 10, INVALID_FORMAT, "A tensor has at most 4 dimensions; their product (zeros left out) and its bytes are below 2^63.") \
  X(gguf, TYPE, 11, VERSION_MISMATCH, "A tensor's type is known.")                                                              \
  X(gguf, BLOCKS, 12, INVALID_FORMAT, "The first dimension is a multiple of the type's block.")                                 \
  X(gguf, PLACE, 13, INVALID_FORMAT, "A tensor's data begins at the first multiple of the alignment after the one before it.")  \
  X(gguf, RANGE, 14, INVALID_FORMAT, "A tensor's data lies in the file.")                                                       \
  X(gguf, SPLIT, 15, INVALID_FORMAT, "A part of a split set says a number below its count, which is at most 1,024, and its name has both.")             \
  X(gguf, SPLIT_PARTS, 16, INVALID_FORMAT, "Each part of a set is a GGUF file that says its own number and the same count.")    \
  X(gguf, SPLIT_TENSORS, 17, INVALID_FORMAT, "All parts together have the tensors that they say, no name twice.")
/* clang-format on */

enum {
#define ACCX_WEIGHTS_RULE_ENUM(format, name, number, status, text) ACCX_RULE_##format##_##name,
  ACCX_WEIGHTS_RULE_LIST(ACCX_WEIGHTS_RULE_ENUM)
#undef ACCX_WEIGHTS_RULE_ENUM
      ACCX_WEIGHTS_RULE_COUNT
};

#endif /* ACCRT_LOADER_WEIGHTS_RULES_H_ */
