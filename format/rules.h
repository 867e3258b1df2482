/* format/rules.h - every check of the verifier by number, in the order in which they are made.
 * docs/accx-format.md has the same list; numbers are never used again for something else. A refusal
 * ends in "(rule N)", and tests provoke each.
 *
 * X(name, number, status, text)
 */
#ifndef ACCRT_FORMAT_RULES_H_
#define ACCRT_FORMAT_RULES_H_

/* clang-format off */
#define ACCX_RULE_LIST(X)                                                                                                      \
  /* Header */                                                                                                                 \
  X(FILE_SIZE, 1, INVALID_FORMAT, "The file holds at least a header and `file_size_bytes` is its actual size.")                \
  X(MAGIC, 2, INVALID_FORMAT, "The magic is right.")                                                                           \
  X(VERSION, 3, VERSION_MISMATCH, "The major of each of the four versions is the reader's.")                                   \
  X(HEADER_FIELDS, 4, INVALID_FORMAT, "Record size, table offset, flags and reserved bytes of the header are as defined.")     \
  X(SECTION_COUNT, 5, INVALID_FORMAT, "There are 1 to 64 sections and their table lies inside the file.")                      \
  X(HEADER_DIGEST, 6, DATA_CORRUPT, "The digest of header and section table matches.")                                         \
  X(FILE_FEATURES, 7, VERSION_MISMATCH, "Every required feature bit of the file is known.")                                    \
  /* Section table */                                                                                                          \
  X(SECTION_ORDER, 10, INVALID_FORMAT, "Section types are not 0 and strictly ascend.")                                         \
  X(SECTION_NAME, 11, INVALID_FORMAT, "A section's name is printable ASCII, zero-padded; a known section has its own.")        \
  X(SECTION_FLAGS, 12, INVALID_FORMAT, "Section flags are known; a known section has the REQUIRED bit of its definition.")     \
  X(SECTION_UNKNOWN, 13, VERSION_MISMATCH, "No REQUIRED section is unknown.")                                                  \
  X(SECTION_PLACE, 14, INVALID_FORMAT, "A section starts at the first multiple of its alignment after the one before it.")     \
  X(SECTION_BOUNDS, 15, INVALID_FORMAT, "A section is not empty, lies inside the file, and the last one ends the file.")       \
  X(SECTION_RECORDS, 16, INVALID_FORMAT, "Record size is as defined, and record size times record count is the size.")         \
  X(SECTION_LIMITS, 17, INVALID_FORMAT, "Sizes and counts are below the limits.")                                              \
  X(SECTION_NEEDED, 18, INVALID_FORMAT, "STRINGS is there; CHUNK_DIGESTS has one record for each 1 MiB of DATA.")              \
  X(SECTION_GAPS, 19, INVALID_FORMAT, "Bytes between sections are zero.")                                                      \
  X(SECTION_DIGEST, 20, DATA_CORRUPT, "The digest of every section matches (DATA: of CHUNK_DIGESTS' bytes).")                  \
  /* Strings */                                                                                                                \
  X(STRING_TABLE, 30, INVALID_FORMAT, "STRINGS begins with the empty string, ends with NUL and has record_count strings.")     \
  X(STRING_ORDER, 31, INVALID_FORMAT, "Strings strictly ascend by their bytes.")                                               \
  X(STRING_UTF8, 32, INVALID_FORMAT, "Strings are UTF-8 of at most 65535 bytes.")                                              \
  X(STRING_REFERENCE, 33, INVALID_FORMAT, "A reference to a string is the offset of a string's first byte.")                   \
  X(NAME, 34, INVALID_FORMAT, "A name is 1 to 1023 bytes long.")                                                               \
  X(NAME_ORDER, 35, INVALID_FORMAT, "Metadata keys and names of symbols, constants, states, kernels and images strictly ascend.") \
  /* Symbols and expressions */                                                                                                \
  X(SYMBOL_CLASS, 40, INVALID_FORMAT, "A symbol's class is known.")                                                            \
  X(SYMBOL_RANGE, 41, INVALID_FORMAT, "0 <= minimum <= maximum <= 2^48, divisor >= 1, and the range has a multiple of it.")    \
  X(SYMBOL_BUCKETS, 42, INVALID_FORMAT, "Buckets belong to BUCKET symbols in order, strictly ascend from 1 up and reach the maximum.") \
  X(EXPRESSION_SCOPE, 43, INVALID_FORMAT, "Scopes follow one another and cover EXPRESSIONS.")                                  \
  X(EXPRESSION_OP, 44, INVALID_FORMAT, "An expression's op is known.")                                                         \
  X(EXPRESSION_OPERANDS, 45, INVALID_FORMAT, "Operands are earlier nodes of the scope, unused ones NONE; only leaves have an immediate.") \
  X(EXPRESSION_LEAF, 46, INVALID_FORMAT, "A symbol, induction depth or optional argument that a node names exists in its scope.") \
  X(EXPRESSION_USE, 47, INVALID_FORMAT, "An expression in use is a node of the scope, and of a kind allowed there.")           \
  /* Types, constants, states */                                                                                               \
  X(TYPE, 50, INVALID_FORMAT, "Data type, encoding, rank and dimensions of a type are known and in range.")                    \
  X(CONSTANT_SOURCE, 51, INVALID_FORMAT, "A constant's source is INLINE, PREPARED or EXTERNAL.")                               \
  X(CONSTANT_SHAPE, 52, INVALID_FORMAT, "Sizes are not negative, zero past the rank, and their product fits.")                 \
  X(COMPONENTS, 53, INVALID_FORMAT, "A constant's components follow those before it; their roles and data types are those of its layout.") \
  X(COMPONENT_SIZE, 54, INVALID_FORMAT, "A component has exactly the bytes that its layout gives the shape (OPAQUE: any).")                               \
  X(COMPONENT_PLACE, 55, INVALID_FORMAT, "INLINE components follow one another in DATA, 256-aligned, and cover it; others are at 0.") \
  X(STATE, 56, INVALID_FORMAT, "A state is PLAIN, its flags are 0, and its fill pattern fits an element.")                     \
  X(LAYOUT_TYPE, 57, INVALID_FORMAT, "A type is one that its layout takes; quantized are only constants and arguments of prepare functions.") \
  X(LAYOUT_SHAPE, 58, INVALID_FORMAT, "A constant's shape is one that its layout takes.")                                      \
  /* Functions */                                                                                                              \
  X(FUNCTION_NAME, 60, INVALID_FORMAT, "No two functions have the same name and target; at most 16 have the same name.")       \
  X(FUNCTION_FIELDS, 61, INVALID_FORMAT, "Function flags are known, reserved fields 0, the arena's alignment a power of two up to 4096.") \
  X(FUNCTION_ORDER, 62, INVALID_FORMAT, "Functions ascend by call depth, then by name, then by target.")                       \
  X(FUNCTION_TILING, 63, INVALID_FORMAT, "Arguments, slots and blocks of functions follow one another and cover their sections.") \
  X(ARGUMENT_KIND, 64, INVALID_FORMAT, "Inputs are READ, READ_WRITE, DONATED or SCALAR, results RESULT; flags are known.")     \
  X(ARGUMENT_NAME, 65, INVALID_FORMAT, "No two inputs, and no two results, of a function have the same name.")                 \
  X(ARGUMENT_SCALAR, 66, INVALID_FORMAT, "A SCALAR names a symbol and is i64 of rank 0; others name none.")                    \
  X(ARGUMENT_ALIAS, 67, INVALID_FORMAT, "Only a RESULT aliases, each a different READ_WRITE or DONATED input.")                \
  X(PREPARE, 68, INVALID_FORMAT, "Prepare functions map INLINE and EXTERNAL to PREPARED constants of their types and touch nothing else.") \
  X(PREPARE_ONCE, 69, INVALID_FORMAT, "Every PREPARED constant is the result of prepare functions of exactly one name.")       \
  X(SLOT, 70, INVALID_FORMAT, "Slots are the arguments in order, then constants, states, the arena, strictly ascending.")      \
  X(SYMBOL_BOUND, 71, INVALID_FORMAT, "Every symbol a function needs is bound by its signature, by the session, or (INTERNAL) by its caller.") \
  X(VIEW, 72, INVALID_FORMAT, "Views are used in order; their data type, rank, shape and strides are in range.")               \
  X(FUNCTION_TARGET, 73, INVALID_FORMAT, "A function has feature bit 0 exactly when it has a target.")                         \
  X(FUNCTION_VERSIONS, 74, INVALID_FORMAT, "Functions of one name have the same flags, arguments and types (not docs).")       \
  X(CALL_TARGET, 75, INVALID_FORMAT, "A call is of a function without a target, or with the caller's.")                        \
  /* Blocks and commands */                                                                                                    \
  X(BLOCK_TILING, 80, INVALID_FORMAT, "Blocks follow one another and cover COMMANDS.")                                         \
  X(BLOCK_USE, 81, INVALID_FORMAT, "Blocks are used once each, in the order of their commands, outer before inner.")           \
  X(BLOCK_DEPTH, 82, INVALID_FORMAT, "Blocks nest at most 16 deep.")                                                           \
  X(COMMAND_SIZE, 83, INVALID_FORMAT, "A command's size is what its opcode, operands and predecessors need, inside its block.") \
  X(COMMAND_FLAGS, 84, INVALID_FORMAT, "Command flags are known; a known command has the REQUIRED bit of its definition.")     \
  X(COMMAND_UNKNOWN, 85, VERSION_MISMATCH, "No REQUIRED command is unknown.")                                                  \
  X(COMMAND_FIELDS, 86, INVALID_FORMAT, "Reserved fields, padding and fields without use are zero or NONE.")                   \
  X(COMMAND_PREDECESSORS, 87, INVALID_FORMAT, "Predecessors strictly ascend and are earlier commands of the block; a barrier has none.") \
  X(RANGE_SLOT, 88, INVALID_FORMAT, "A range's slot exists and has storage.")                                                  \
  X(RANGE_ACCESS, 89, INVALID_FORMAT, "A range's access is what the command does, and its slot allows it.")                    \
  X(DISPATCH_KERNEL, 90, INVALID_FORMAT, "A dispatch names a kernel and has one operand for each of its parameters.")          \
  X(OPERAND, 91, INVALID_FORMAT, "An operand is of the kind, access and size that the kernel's or function's parameter declares.") \
  X(FILL, 92, INVALID_FORMAT, "A fill's pattern has 1, 2, 4 or 8 bytes and fits them.")                                        \
  X(CALL, 93, INVALID_FORMAT, "A call names a function of a lower index that is no prepare function.")                         \
  X(CALL_LIMITS, 94, INVALID_FORMAT, "Calls nest at most 16 deep and expand to at most 2^24 commands.")                        \
  /* Kernels and images */                                                                                                     \
  X(KERNEL_TRAITS, 100, INVALID_FORMAT, "Kernel traits are known; local memory is at most 256 MiB.")                           \
  X(KERNEL_TILING, 101, INVALID_FORMAT, "Parameters, variants and predicates follow one another and cover their sections.")    \
  X(PARAMETERS, 102, INVALID_FORMAT, "The parameter block keeps the rules of the kernel ABI.")                                 \
  X(PARAMETER_NAME, 103, INVALID_FORMAT, "No two parameters of a kernel have the same name.")                                  \
  X(VARIANT, 104, INVALID_FORMAT, "A kernel has variants; a variant names driver, architecture (portable ones may), image and entry.") \
  X(PREDICATE, 105, INVALID_FORMAT, "A predicate is of a known kind, for a parameter of a fitting kind, in range, in order.")  \
  X(IMAGE_PLACE, 106, INVALID_FORMAT, "Images follow one another in CODE, 4096-aligned, not empty, and cover it, gaps zero; a PACK has no bytes.") \
  X(IMAGE_KIND, 107, INVALID_FORMAT, "An image's kind is known, a variant for the host has a host image or a PACK, and a PACK's name is a bare one.") \
  X(IMAGE_HEADER, 108, INVALID_FORMAT, "A host image begins as a 64-bit ELF file whose headers lie inside it; PTX ends with NUL.") \
  X(LAUNCH, 109, INVALID_FORMAT, "Launches ascend by variant, are of all CUBIN, PTX and FATBIN variants (0.1: or none) and of no others, and in range.") \
  /* Across everything */                                                                                                      \
  X(MINIMUM, 110, INVALID_FORMAT, "The versions in the header are the computed minimum.")                                      \
  X(DATA_DIGEST, 111, DATA_CORRUPT, "A chunk of DATA matches its digest (before its first use).")                              \
  X(DATA_GAPS, 112, INVALID_FORMAT, "Bytes of DATA between components are zero (full verification).")                          \
  X(CODE_CHANGED, 113, DATA_CORRUPT, "An image is what was verified at open (when it is loaded).")                             \
  X(RECORD_FORM, 114, INVALID_FORMAT, "The records of a section have the shortest form that holds them.")                      \
  X(SECTION_PAIRS, 115, INVALID_FORMAT, "A section that needs another has it; of chunks, trees and encryptions there is the right number.") \
  /* Since 0.3 */                                                                                                              \
  X(FILE, 120, INVALID_FORMAT, "A file's name is a bare one, names ascend, its kind is known, flags and reserved fields are 0.") \
  X(EXTERNAL, 121, INVALID_FORMAT, "An EXTERNAL constant names a file or none, and has a digest or is bound by name; others have neither.") \
  X(SHARD, 130, INVALID_FORMAT, "Shards ascend by constant; kind, axis and degree (one for all) are in range; each EXTERNAL constant has one.") \
  X(SEGMENT, 131, INVALID_FORMAT, "Segments of a shard follow one another, cover its extent, and cut into equal parts that make up the constant and cut no block.") \
  X(ADAPTER, 135, INVALID_FORMAT, "Adapter tensors ascend, and each names an OPTIONAL input; flags are known and reserved fields 0.") \
  X(TREE, 140, INVALID_FORMAT, "A tree's algorithm and chunk size are known, reserved fields are 0, and there are leaves when there is DATA, else no weight root.") \
  X(SIGNATURE, 141, INVALID_FORMAT, "Signatures strictly ascend by scope and key, those of weights have leaves; their algorithm is known, reserved fields are 0.") \
  X(CODE_ROOT, 142, DATA_CORRUPT, "The tree's code root is that of the file (before host code runs; full verification).")      \
  X(WEIGHT_ROOT, 143, DATA_CORRUPT, "The tree's weight root is that of the leaves (where weights must be signed; full verification).") \
  X(LEAF, 144, DATA_CORRUPT, "A chunk of DATA matches its leaf (where weights must be signed; full verification).")            \
  X(SIGNED, 145, DATA_CORRUPT, "A signature is its key's, of the root of its scope (full verification).")                      \
  X(CODE_TRUST, 146, UNTRUSTED, "Machine code of the host is what the policy allows (before it runs).")                        \
  X(WEIGHT_TRUST, 147, UNTRUSTED, "Weights are signed by a trusted key (where they must be).")                                 \
  X(FLOOR, 148, UNTRUSTED, "A bundle's version is not below the floor of its name (when a program is made).")                  \
  X(ENCRYPTED, 149, UNTRUSTED, "Weights are encrypted (where they must be).")                                                  \
  X(ENCRYPTION, 150, INVALID_FORMAT, "ENCRYPTION is there exactly when the file requires feature bit 0; its algorithm is known, reserved fields are 0.") \
  X(ENCRYPTION_KEY, 151, PERMISSION_DENIED, "Encrypted weights are read with the key that ENCRYPTION names.")                  \
  X(TAG, 152, DATA_CORRUPT, "An encrypted chunk of DATA matches its tag (before its first use).")                              \
  X(ASSET, 155, INVALID_FORMAT, "Asset names ascend, reserved fields are 0.")                                                  \
  X(ASSET_PLACE, 156, INVALID_FORMAT, "Assets follow one another in ASSET_DATA, 8-aligned, cover it, gaps zero.")              \
  X(LOCATION, 157, INVALID_FORMAT, "Locations strictly ascend by (file, line, column, name).")
/* clang-format on */

enum {
#define ACCX_RULE_ENUM(name, number, status, text) ACCX_RULE_##name = number,
  ACCX_RULE_LIST(ACCX_RULE_ENUM)
#undef ACCX_RULE_ENUM
};

#endif /* ACCRT_FORMAT_RULES_H_ */
