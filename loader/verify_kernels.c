/* loader/verify_kernels.c - kernels, parameters, variants, predicates (rules 100 to 105 and 109),
 * and code images (rules 106 to 108). CODE is read once, in pieces; only one piece is in memory at
 * a time. */

#include "loader/internal.h"
#include "runtime/core/elf_check.h"
#include "runtime/core/pack.h"

#define PIECE_BYTES (UINT64_C(256) * 1024)
#define MAX_ALIGNED_VALUE 4096

/* ---- Kernels ---- */

static accrt_status_t check_parameters(accx_verifier_t* verifier, const accx_kernel_t* kernel) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  accrt_kernel_param_t params[ACCRT_KERNEL_MAX_PARAMS];
  accx_set_clear(verifier);
  for (uint32_t i = 0; i < kernel->parameter_count; ++i) {
    const uint32_t record = kernel->parameter_first + i;
    const accx_parameter_t* parameter = &tables->parameters[record];
    ACCRT_TRY(accx_check_name(verifier, parameter->name, "parameters", record, "name"));
    if (!accx_set_add(verifier, parameter->name)) {
      return ACCX_REJECT(verifier, PARAMETER_NAME, "parameters", record, "name",
                         "kernel '%.64s' has two '%.64s'",
                         accx_verifier_text(verifier, kernel->name),
                         accx_verifier_text(verifier, parameter->name));
    }
    params[i] = (accrt_kernel_param_t){accx_verifier_text(verifier, parameter->name),
                                       parameter->kind,
                                       parameter->access,
                                       parameter->flags,
                                       parameter->align_log2,
                                       parameter->offset_bytes,
                                       parameter->size_bytes,
                                       0};
  }
  uint32_t bad = 0;
  const char* why =
      accrt_kernel_check_params(params, kernel->parameter_count, kernel->params_size_bytes, &bad);
  if (why == NULL)
    return ACCRT_OK;
  const accrt_kernel_param_t* param = bad < kernel->parameter_count ? &params[bad] : NULL;
  return ACCX_REJECT(verifier, PARAMETERS, "parameters", kernel->parameter_first + bad, NULL,
                     "'%.64s' of kernel '%.64s' (kind %u, access %u, flags %u, %" PRIu32
                     " bytes at %" PRIu32 " of %" PRIu32 "): %s",
                     param != NULL ? param->name : "", accx_verifier_text(verifier, kernel->name),
                     param != NULL ? param->kind : 0, param != NULL ? param->access : 0,
                     param != NULL ? param->flags : 0, param != NULL ? param->size_bytes : 0,
                     param != NULL ? param->offset_bytes : 0, kernel->params_size_bytes, why);
}

static bool predicate_fits(const accx_predicate_t* predicate, const accx_parameter_t* parameter) {
  const uint32_t kind = parameter->kind;
  const bool is_value = kind == ACCRT_KERNEL_PARAM_SYMBOL || kind == ACCRT_KERNEL_PARAM_SCALAR;
  const bool is_address = kind == ACCRT_KERNEL_PARAM_BUFFER || kind == ACCRT_KERNEL_PARAM_TENSOR;
  switch (predicate->kind) {
  case ACCX_PREDICATE_DIVISIBLE:
    return is_value && predicate->value >= 1;
  case ACCX_PREDICATE_ALIGNED:
    return is_address && predicate->value >= 1 && predicate->value <= MAX_ALIGNED_VALUE &&
           accrt_is_power_of_two((uint64_t)predicate->value);
  case ACCX_PREDICATE_EQUAL:
  case ACCX_PREDICATE_AT_MOST:
  case ACCX_PREDICATE_AT_LEAST:
    return is_value;
  default:
    return false;
  }
}

static bool predicate_follows(const accx_predicate_t* before, const accx_predicate_t* predicate) {
  if (predicate->kind != before->kind)
    return predicate->kind > before->kind;
  if (predicate->parameter != before->parameter)
    return predicate->parameter > before->parameter;
  return predicate->value > before->value;
}

static accrt_status_t check_predicates(const accx_verifier_t* verifier, const accx_kernel_t* kernel,
                                       const accx_variant_t* variant) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  for (uint32_t i = 0; i < variant->predicate_count; ++i) {
    const uint32_t record = variant->predicate_first + i;
    const accx_predicate_t* predicate = &tables->predicates[record];
    if (predicate->parameter < kernel->parameter_count &&
        predicate_fits(predicate,
                       &tables->parameters[kernel->parameter_first + predicate->parameter]) &&
        (i == 0 || predicate_follows(predicate - 1, predicate))) {
      continue;
    }
    return ACCX_REJECT(verifier, PREDICATE, "predicates", record, "kind",
                       "kind %" PRIu32 " with value %" PRId64 " on parameter %" PRIu32
                       " of %" PRIu32 " of kernel '%.64s'",
                       predicate->kind, predicate->value, predicate->parameter,
                       kernel->parameter_count, accx_verifier_text(verifier, kernel->name));
  }
  return ACCRT_OK;
}

static accrt_status_t check_variant(const accx_verifier_t* verifier, const accx_kernel_t* kernel,
                                    uint32_t record, uint32_t next_predicate) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_variant_t* variant = &tables->variants[record];
  ACCRT_TRY(accx_check_name(verifier, variant->driver, "variants", record, "driver"));
  ACCRT_TRY(accx_check_string(verifier, variant->arch, "variants", record, "arch"));
  ACCRT_TRY(accx_check_name(verifier, variant->entry, "variants", record, "entry"));
  const bool portable = variant->arch_kind == ACCX_ARCH_PORTABLE;
  if (variant->arch_kind >= ACCX_ARCH_END || (!portable && variant->arch == 0) ||
      variant->image >= tables->image_count) {
    return ACCX_REJECT(verifier, VARIANT, "variants", record, "arch_kind",
                       "kind %" PRIu32 " of architecture '%.64s', image %" PRIu32 " of %" PRIu32
                       ", of kernel '%.64s'",
                       variant->arch_kind, accx_verifier_text(verifier, variant->arch),
                       variant->image, tables->image_count,
                       accx_verifier_text(verifier, kernel->name));
  }
  if (variant->predicate_first != next_predicate ||
      !accrt_range_fits(next_predicate, variant->predicate_count, tables->predicate_count)) {
    return ACCX_REJECT(verifier, KERNEL_TILING, "variants", record, "predicate_first",
                       "%" PRIu32 " predicates from %" PRIu32 ", expected from %" PRIu32
                       " of %" PRIu32,
                       variant->predicate_count, variant->predicate_first, next_predicate,
                       tables->predicate_count);
  }
  const bool host = strcmp(accx_verifier_text(verifier, variant->driver), "host") == 0;
  const uint32_t image_kind = tables->images[variant->image].kind;
  if (host && image_kind != ACCX_IMAGE_HOST_ELF && image_kind != ACCX_IMAGE_PACK) {
    return ACCX_REJECT(verifier, IMAGE_KIND, "variants", record, "image",
                       "image %" PRIu32 " is of kind %" PRIu32
                       ", the host driver has use for %d and %d",
                       variant->image, image_kind, ACCX_IMAGE_HOST_ELF, ACCX_IMAGE_PACK);
  }
  return check_predicates(verifier, kernel, variant);
}

/* First records of the next kernel. */
typedef struct kernel_cursor {
  uint32_t parameter;
  uint32_t variant;
  uint32_t predicate;
} kernel_cursor_t;

static accrt_status_t check_kernel(accx_verifier_t* verifier, uint32_t index,
                                   kernel_cursor_t* next) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_kernel_t* kernel = &tables->kernels[index];
  const uint32_t traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC | ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE |
                          ACCRT_KERNEL_TRAIT_SERIAL | ACCRT_KERNEL_TRAIT_CAPTURABLE |
                          ACCRT_KERNEL_TRAIT_READS_HOST_METADATA;
  if ((kernel->traits & ~traits) != 0 ||
      kernel->local_memory_size_bytes > ACCX_MAX_LOCAL_MEMORY_BYTES) {
    return ACCX_REJECT(verifier, KERNEL_TRAITS, "kernels", index, "traits",
                       "0x%" PRIx32 " with %" PRIu32 " bytes of local memory, of '%.64s'",
                       kernel->traits, kernel->local_memory_size_bytes,
                       accx_verifier_text(verifier, kernel->name));
  }
  if (kernel->parameter_first != next->parameter ||
      kernel->parameter_count > ACCRT_KERNEL_MAX_PARAMS ||
      !accrt_range_fits(next->parameter, kernel->parameter_count, tables->parameter_count)) {
    return ACCX_REJECT(verifier, KERNEL_TILING, "kernels", index, "parameter_first",
                       "%" PRIu32 " parameters from %" PRIu32 ", expected at most %d from %" PRIu32
                       " of %" PRIu32,
                       kernel->parameter_count, kernel->parameter_first, ACCRT_KERNEL_MAX_PARAMS,
                       next->parameter, tables->parameter_count);
  }
  if (kernel->variant_first != next->variant ||
      !accrt_range_fits(next->variant, kernel->variant_count, tables->variant_count)) {
    return ACCX_REJECT(
        verifier, KERNEL_TILING, "kernels", index, "variant_first",
        "%" PRIu32 " variants from %" PRIu32 ", expected from %" PRIu32 " of %" PRIu32,
        kernel->variant_count, kernel->variant_first, next->variant, tables->variant_count);
  }
  if (kernel->variant_count == 0) {
    return ACCX_REJECT(verifier, VARIANT, "kernels", index, "variant_count",
                       "'%.64s' has no variant", accx_verifier_text(verifier, kernel->name));
  }
  ACCRT_TRY(check_parameters(verifier, kernel));
  for (uint32_t i = 0; i < kernel->variant_count; ++i) {
    ACCRT_TRY(accrt_charge_record(next->variant + i));
    ACCRT_TRY(check_variant(verifier, kernel, next->variant + i, next->predicate));
    next->predicate += tables->variants[next->variant + i].predicate_count;
  }
  next->parameter += kernel->parameter_count;
  next->variant += kernel->variant_count;
  return ACCRT_OK;
}

accrt_status_t accx_verify_kernels(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  kernel_cursor_t next = {0, 0, 0};
  uint32_t previous = 0;
  for (uint32_t i = 0; i < tables->kernel_count; ++i) {
    ACCRT_TRY(
        accx_check_ordered_name(verifier, tables->kernels[i].name, previous, "kernels", i, "name"));
    previous = tables->kernels[i].name;
    ACCRT_TRY(check_kernel(verifier, i, &next));
  }
  if (next.parameter == tables->parameter_count && next.variant == tables->variant_count &&
      next.predicate == tables->predicate_count) {
    return ACCRT_OK;
  }
  return ACCX_REJECT(verifier, KERNEL_TILING, "kernels", ACCX_NONE, NULL,
                     "kernels name %" PRIu32 " of %" PRIu32 " parameters, %" PRIu32 " of %" PRIu32
                     " variants, %" PRIu32 " of %" PRIu32 " predicates",
                     next.parameter, tables->parameter_count, next.variant, tables->variant_count,
                     next.predicate, tables->predicate_count);
}

/* ---- Launches ---- */

static bool needs_launch(const accrt_bundle_tables_t* tables, uint32_t variant) {
  return accx_image_is_device(tables->images[tables->variants[variant].image].kind);
}

static accrt_status_t check_launch(const accx_verifier_t* verifier, uint32_t index) {
  const accx_launch_t* launch = &verifier->tables->launches[index];
  const uint32_t traits = ACCRT_KERNEL_TRAIT_COOPERATIVE | ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS;
  const uint64_t threads = accx_volume(launch->block, ACCX_MAX_BLOCK_THREADS);
  const uint64_t blocks = accx_volume(launch->cluster, ACCX_MAX_CLUSTER_BLOCKS);
  const bool no_cluster =
      launch->cluster[0] == 0 && launch->cluster[1] == 0 && launch->cluster[2] == 0;
  if ((launch->traits & ~traits) == 0 && launch->reserved == 0 && threads >= 1 &&
      threads <= ACCX_MAX_BLOCK_THREADS &&
      (no_cluster || (blocks >= 1 && blocks <= ACCX_MAX_CLUSTER_BLOCKS)) &&
      launch->dynamic_shared_bytes <= ACCX_MAX_LOCAL_MEMORY_BYTES) {
    return ACCRT_OK;
  }
  return ACCX_REJECT(verifier, LAUNCH, "launches", index, NULL,
                     "variant %" PRIu32 ": traits 0x%" PRIx32 ", block %" PRIu32 " %" PRIu32
                     " %" PRIu32 ", cluster %" PRIu32 " %" PRIu32 " %" PRIu32 ", %" PRIu32
                     " bytes of shared memory, reserved %" PRIu32,
                     launch->variant, launch->traits, launch->block[0], launch->block[1],
                     launch->block[2], launch->cluster[0], launch->cluster[1], launch->cluster[2],
                     launch->dynamic_shared_bytes, launch->reserved);
}

/* A file for container 0.1 may have no launches, because 0.1 had none. */
static accrt_status_t check_launches(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  if (tables->launch_count == 0 && tables->header.container.minor < 2)
    return ACCRT_OK;
  uint32_t next = 0;
  for (uint32_t i = 0; i < tables->variant_count; ++i) {
    if (!needs_launch(tables, i))
      continue;
    if (next == tables->launch_count || tables->launches[next].variant != i) {
      return ACCX_REJECT(
          verifier, LAUNCH, "launches", next, "variant",
          "variant %" PRIu32 " (entry '%.64s') has no launch in its place of %" PRIu32, i,
          accx_verifier_text(verifier, tables->variants[i].entry), tables->launch_count);
    }
    ACCRT_TRY(check_launch(verifier, next++));
  }
  if (next == tables->launch_count)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, LAUNCH, "launches", next, "variant",
                     "variant %" PRIu32 " of %" PRIu32 " has none, or has one already",
                     tables->launches[next].variant, tables->variant_count);
}

/* ---- Images ---- */

static accrt_status_t check_pack_image(const accx_verifier_t* verifier, uint32_t index) {
  const accx_image_t* image = &verifier->tables->images[index];
  if (image->offset_bytes != 0 || image->size_bytes != 0) {
    return ACCX_REJECT(verifier, IMAGE_PLACE, "images", index, "size_bytes",
                       "%" PRIu64 " bytes at %" PRIu64 " of the pack '%.64s', which has none",
                       image->size_bytes, image->offset_bytes,
                       accx_verifier_text(verifier, image->name));
  }
  if (accx_pack_name_good(accx_verifier_text(verifier, image->name)))
    return ACCRT_OK;
  return ACCX_REJECT(verifier, IMAGE_KIND, "images", index, "name",
                     "'%.64s' is no name of a pack: letters, digits, '.', '_' and '-', at most %u",
                     accx_verifier_text(verifier, image->name), ACCX_MAX_PACK_NAME_BYTES);
}

static accrt_status_t check_image_records(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t previous = 0;
  uint64_t end = 0;
  for (uint32_t i = 0; i < tables->image_count; ++i) {
    const accx_image_t* image = &tables->images[i];
    ACCRT_TRY(accx_check_ordered_name(verifier, image->name, previous, "images", i, "name"));
    previous = image->name;
    if (image->kind == ACCX_IMAGE_PACK) {
      ACCRT_TRY(check_pack_image(verifier, i));
      continue;
    }
    if (image->kind < ACCX_IMAGE_HOST_ELF || image->kind >= ACCX_IMAGE_END) {
      return ACCX_REJECT(verifier, IMAGE_KIND, "images", i, "kind",
                         "%" PRIu32 " of '%.64s' is not known", image->kind,
                         accx_verifier_text(verifier, image->name));
    }
    uint64_t expected;
    if (!accrt_align_u64(end, ACCX_DATA_ALIGN, &expected) || image->offset_bytes != expected ||
        image->size_bytes == 0 ||
        !accrt_range_fits(expected, image->size_bytes, tables->code_size_bytes)) {
      return ACCX_REJECT(verifier, IMAGE_PLACE, "images", i, "offset_bytes",
                         "%" PRIu64 " bytes at %" PRIu64 " of '%.64s', expected after %" PRIu64
                         " in %" PRIu64,
                         image->size_bytes, image->offset_bytes,
                         accx_verifier_text(verifier, image->name), end, tables->code_size_bytes);
    }
    end = expected + image->size_bytes;
  }
  if (end == tables->code_size_bytes)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, IMAGE_PLACE, "code", ACCX_NONE, NULL,
                     "%" PRIu64 " bytes, but images end at %" PRIu64, tables->code_size_bytes, end);
}

/* The loader of ELF files checks the rest (runtime/core/elf_image.c). */
static accrt_status_t check_elf_header(const accx_verifier_t* verifier, const unsigned char* bytes,
                                       uint64_t size_bytes, uint32_t index) {
  Elf64_Ehdr header;
  accrt_image_fault_t fault;
  bool good = accrt_elf_read_header(bytes, size_bytes, &header, &fault);
  if (good && (header.e_type != ET_DYN || header.e_phnum == 0)) {
    good = accrt_image_fault(&fault, "type %u with %u program headers, not ET_DYN with any",
                             header.e_type, header.e_phnum);
  }
  if (good)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, IMAGE_HEADER, "images", index, NULL, "'%.64s': %s",
                     accx_verifier_text(verifier, verifier->tables->images[index].name),
                     fault.text);
}

/* A reader of CODE. All bytes enter the section's digest, in order. A problem of an image is stored
 * until the digest is known. If the bytes are corrupt, the caller gets that error instead. */
typedef struct code_reader {
  const accx_verifier_t* verifier;
  accx_hasher_t whole;
  unsigned char* piece;
  uint64_t piece_bytes;
  uint64_t at;
  accrt_status_t problem;
} code_reader_t;

static accrt_status_t read_piece(code_reader_t* reader, uint64_t end, uint64_t* out_size_bytes) {
  accrt_bundle_t* bundle = reader->verifier->bundle;
  const uint64_t left = end - reader->at;
  const uint64_t size = left < reader->piece_bytes ? left : reader->piece_bytes;
  ACCRT_TRY(
      accx_source_read(&bundle->source, bundle->code_offset + reader->at, reader->piece, size));
  accx_hasher_update(&reader->whole, reader->piece, (size_t)size);
  reader->at += size;
  *out_size_bytes = size;
  return ACCRT_OK;
}

static accrt_status_t read_code_gap(code_reader_t* reader, uint64_t end) {
  while (reader->at < end) {
    uint64_t size;
    const uint64_t begin = reader->at;
    ACCRT_TRY(read_piece(reader, end, &size));
    for (uint64_t i = 0; i < size; ++i) {
      if (reader->piece[i] == 0 || reader->problem != ACCRT_OK)
        continue;
      reader->problem = ACCX_REJECT(reader->verifier, IMAGE_PLACE, "code", ACCX_NONE, NULL,
                                    "byte %" PRIu64 " between two images is %u, not 0", begin + i,
                                    reader->piece[i]);
    }
  }
  return ACCRT_OK;
}

static accrt_status_t read_image(code_reader_t* reader, uint32_t index) {
  const accx_verifier_t* verifier = reader->verifier;
  const accx_image_t* image = &verifier->tables->images[index];
  const uint64_t end = image->offset_bytes + image->size_bytes;
  accx_hasher_t own;
  accx_hasher_init(&own);
  uint64_t size = 0;
  for (bool first = true; reader->at < end; first = false) {
    ACCRT_TRY(accrt_checkpoint());
    ACCRT_TRY(read_piece(reader, end, &size));
    if (first && image->kind == ACCX_IMAGE_HOST_ELF && reader->problem == ACCRT_OK) {
      /* The first piece has the header, and a shorter image completely. */
      reader->problem = check_elf_header(verifier, reader->piece, image->size_bytes, index);
    }
    accx_hasher_update(&own, reader->piece, (size_t)size);
  }
  if (image->kind == ACCX_IMAGE_PTX && reader->piece[size - 1] != 0 &&
      reader->problem == ACCRT_OK) {
    reader->problem = ACCX_REJECT(verifier, IMAGE_HEADER, "images", index, NULL,
                                  "'%.64s': PTX does not end with NUL",
                                  accx_verifier_text(verifier, image->name));
  }
  verifier->bundle->image_digests[index] = accx_hasher_finish(&own);
  return ACCRT_OK;
}

static accrt_status_t read_code(code_reader_t* reader) {
  const accx_verifier_t* verifier = reader->verifier;
  accx_hasher_init(&reader->whole);
  for (uint32_t i = 0; i < verifier->tables->image_count; ++i) {
    ACCRT_TRY(read_code_gap(reader, verifier->tables->images[i].offset_bytes));
    ACCRT_TRY(read_image(reader, i));
  }
  const accx_section_t* section = verifier->sections[ACCX_SECTION_CODE];
  if (section == NULL)
    return ACCRT_OK; /* only in packs */
  const accx_digest_t found = accx_hasher_finish(&reader->whole);
  ACCRT_TRY(accx_check_digest(verifier, section, &found));
  return reader->problem;
}

accrt_status_t accx_verify_images(accx_verifier_t* verifier) {
  accrt_bundle_t* bundle = verifier->bundle;
  ACCRT_TRY(check_image_records(verifier));
  ACCRT_TRY(check_launches(verifier));
  if (verifier->tables->image_count == 0)
    return ACCRT_OK;
  void *digests, *piece;
  ACCRT_TRY(accrt_alloc_array(bundle->allocator, verifier->tables->image_count,
                              sizeof(accx_digest_t), &digests));
  bundle->image_digests = digests;
  const uint64_t code_bytes = verifier->tables->code_size_bytes;
  const size_t piece_bytes = (size_t)(code_bytes < PIECE_BYTES ? code_bytes : PIECE_BYTES);
  ACCRT_TRY(accrt_alloc(bundle->allocator, piece_bytes, &piece));
  code_reader_t reader = {.verifier = verifier, .piece = piece, .piece_bytes = piece_bytes};
  const accrt_status_t status = read_code(&reader);
  accrt_free(bundle->allocator, piece, piece_bytes);
  return status;
}
