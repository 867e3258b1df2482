/* runtime/core/pack.h - kernel packs and kernel handles inside the library.
 *
 * For the program layer and for drivers/common. Packs from shared objects, from registered
 * functions and from freestanding images end as the same thing: definitions copied into the
 * library's own memory and own struct version. It may not mention bundles, devices or streams.
 */
#ifndef ACCRT_RUNTIME_CORE_PACK_H_
#define ACCRT_RUNTIME_CORE_PACK_H_

#include "accrt/commands.h"
#include "accrt/sys/driver.h"
#include "runtime/core/object.h"

/* A kernel. It shares the life of what holds it: a pack, or whoever made it with accrt_kernel_init
 * (a program, for kernels of device modules). */
struct accrt_kernel {
  accrt_driver_kernel_t view;        /* definition, environment, module kernel: what drivers see */
  accrt_driver_operator_t operation; /* of a host operator; definition NULL: it is a kernel */
  accrt_kernel_pack_t* pack;         /* NULL when no pack holds it */
  const char* pack_name;
  const void* device; /* the one device that it runs on, or NULL: any that can */
};

/* A kernel that no pack holds. Everything is borrowed and must outlive it. */
void accrt_kernel_init(accrt_kernel_t* kernel, const accrt_kernel_def_t* definition,
                       void* module_kernel, const char* pack_name);

/* Loads a freestanding image for the program layer. As accrt_kernel_pack_load, but the instance's
 * host code policy is not asked: whoever calls has done that. `required_cpu_features` (a variant's)
 * that this machine lacks: ACCRT_ERROR_UNSUPPORTED. */
accrt_status_t accrt_kernel_pack_load_checked(accrt_instance_t* instance, const void* image,
                                              uint64_t size_bytes, const char* name,
                                              uint64_t required_cpu_features,
                                              accrt_kernel_pack_t** out_pack);
/* A pack around machine code that somebody else has loaded. */
typedef struct accrt_pack_module {
  const char* name;
  const accrt_kernel_def_t* kernels; /* checked by the caller; copied */
  uint32_t kernel_count;
  const void* device; /* the one that the kernels run on */
  void* user;
  /* Gives the module's own handle of a kernel. */
  accrt_status_t (*find)(void* user, const accrt_kernel_def_t* declared, void** out_module_kernel);
  /* Called once, when the pack goes or could not be made. May be inside a completion. */
  void (*unload)(void* user);
} accrt_pack_module_t;
accrt_status_t accrt_kernel_pack_make_module(accrt_instance_t* instance,
                                             const accrt_pack_module_t* module,
                                             accrt_kernel_pack_t** out_pack);
/* A pack for a bundle that names it: one that is open (the latest of that name), else the file NAME.so in the folder of
 * installed packs (option packs.path, or accrt/packs beside the library), which is as trusted as the library. The name has
 * been checked to be a bare one. Gives an internal reference. ACCRT_ERROR_NOT_FOUND, and what a broken pack gives. */
accrt_status_t accrt_kernel_pack_obtain(accrt_instance_t* instance, const char* name,
                                        accrt_kernel_pack_t** out_pack);
/* As accrt_kernel_pack_find without a record: NULL when there is none. `why_not` (may be NULL) gets
 * a static text when the pack has the kernel but this machine lacks CPU features that it needs. */
accrt_kernel_t* accrt_kernel_pack_lookup(accrt_kernel_pack_t* pack, const char* name,
                                         const char** why_not);

/* References that do not hold the instance, for what ends with it: operations of streams, recorded
 * commands. NULL is allowed. */
void accrt_kernel_pack_ref(accrt_kernel_pack_t* pack);
void accrt_kernel_pack_unref(accrt_kernel_pack_t* pack);

/* What this runtime lends to every pack. Static. */
const accrt_kernel_environment_t* accrt_kernel_environment(void);

/* "BUFFER", "TENSOR", ... for messages; "?" for unknown kinds. Static. */
const char* accrt_kernel_param_kind_name(uint32_t kind);

/* Checks what a kernel says of itself against the rules of accrt/kernel.h (docs/kernel-abi.md lists
 * them). `what` names pack or bundle in messages. ACCRT_ERROR_INVALID_FORMAT. */
accrt_status_t accrt_kernel_check_definition(const char* what,
                                             const accrt_kernel_def_t* definition);
/* The same for a host operator. */
accrt_status_t accrt_operator_check_definition(const char* what,
                                               const accrt_operator_def_t* definition);
/* Its parameters as a kernel would declare them: without what operators alone say. Room for param_count. */
void accrt_operator_plain_params(const accrt_operator_def_t* definition,
                                 accrt_kernel_param_t* out_params);
/* Rules of a parameter block alone: known kinds, sizes by kind, ascending, not overlapping,
 * aligned, inside the block. Gives the index of the offending parameter and a static text, or NULL
 * when all is well. */
const char* accrt_kernel_check_params(const accrt_kernel_param_t* params, uint32_t param_count,
                                      uint32_t params_size_bytes, uint32_t* out_index);

/* The driver's view of a handle: of a host pack, or of a module's kernel. */
const accrt_driver_kernel_t* accrt_kernel_driver_view(const accrt_kernel_t* kernel);
/* Of a host operator; NULL for a kernel. */
const accrt_driver_operator_t* accrt_kernel_operator_view(const accrt_kernel_t* kernel);

#endif /* ACCRT_RUNTIME_CORE_PACK_H_ */
