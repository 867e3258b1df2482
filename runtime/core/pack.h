/* runtime/core/pack.h - kernel packs and kernel handles inside the library.
 *
 * For the program layer and for drivers/common. Packs from shared objects, registered functions and
 * freestanding images are all represented as definitions in the library's own memory and struct
 * version. It may not mention bundles, devices or streams.
 */
#ifndef ACCRT_RUNTIME_CORE_PACK_H_
#define ACCRT_RUNTIME_CORE_PACK_H_

#include "accrt/commands.h"
#include "accrt/sys/driver.h"
#include "runtime/core/object.h"

/* A kernel. It lives as long as its owner: a pack, or (for kernels of device modules) the program
 * that called accrt_kernel_init. */
struct accrt_kernel {
  accrt_driver_kernel_t view;        /* what drivers see: definition, environment, module kernel */
  accrt_driver_operator_t operation; /* for a host operator; its definition is NULL for a kernel */
  accrt_kernel_pack_t* pack;         /* NULL when it belongs to no pack */
  const char* pack_name;
  const void* device;               /* the only device that it runs on; NULL: any that can run it */
  const accrt_instance_t* instance; /* the instance whose devices it runs on; NULL: any */
};

/* Initialises a kernel without a pack. The arguments must outlive it. */
void accrt_kernel_init(accrt_kernel_t* kernel, const accrt_kernel_def_t* definition,
                       void* module_kernel, const char* pack_name);

/* Loads a freestanding image for the program layer. As accrt_kernel_pack_load, but the caller has
 * already checked the instance's policy for host code. ACCRT_ERROR_UNSUPPORTED when this machine
 * lacks some of `required_cpu_features` (those of a variant). */
accrt_status_t accrt_kernel_pack_load_checked(accrt_instance_t* instance, const void* image,
                                              uint64_t size_bytes, const char* name,
                                              uint64_t required_cpu_features,
                                              accrt_kernel_pack_t** out_pack);
/* A pack around machine code that another part of the library loaded. */
typedef struct accrt_pack_module {
  const char* name;
  const accrt_kernel_def_t* kernels; /* checked by the caller; the pack copies them */
  uint32_t kernel_count;
  const void* device; /* the only device that the kernels run on */
  void* user;
  /* Returns the module's own handle of a kernel. */
  accrt_status_t (*find)(void* user, const accrt_kernel_def_t* declared, void** out_module_kernel);
  /* Called once, at the pack's end or when it could not be created. May run inside a completion. */
  void (*unload)(void* user);
} accrt_pack_module_t;
accrt_status_t accrt_kernel_pack_make_module(accrt_instance_t* instance,
                                             const accrt_pack_module_t* module,
                                             accrt_kernel_pack_t** out_pack);
/* Returns the pack that a bundle names, with an internal reference: the latest open one of that
 * name, or else the file NAME.so in the folder of installed packs (option packs.path, or
 * accrt/packs beside the library). That folder is trusted like the library. The caller has checked
 * that the name has no path. Otherwise ACCRT_ERROR_NOT_FOUND, or the error of a broken pack. */
accrt_status_t accrt_kernel_pack_obtain(accrt_instance_t* instance, const char* name,
                                        accrt_kernel_pack_t** out_pack);
/* As accrt_kernel_pack_find without an error record: NULL when there is none. `why_not` (may be
 * NULL) gets a static text when the pack has the kernel but this machine lacks CPU features. */
accrt_kernel_t* accrt_kernel_pack_lookup(accrt_kernel_pack_t* pack, const char* name,
                                         const char** why_not);

/* References that do not retain the instance, for objects that end with it: operations of streams,
 * recorded commands. NULL is allowed. */
void accrt_kernel_pack_ref(accrt_kernel_pack_t* pack);
void accrt_kernel_pack_unref(accrt_kernel_pack_t* pack);

/* The functions and facts that the runtime gives to every pack. Static. */
const accrt_kernel_environment_t* accrt_kernel_environment(void);

/* "BUFFER", "TENSOR", ... for messages; "?" for unknown kinds. Static. */
const char* accrt_kernel_param_kind_name(uint32_t kind);

/* Checks a kernel's definition against the rules of accrt/kernel.h (docs/kernel-abi.md lists them).
 * `what` names pack or bundle in messages. ACCRT_ERROR_INVALID_FORMAT. */
accrt_status_t accrt_kernel_check_definition(const char* what,
                                             const accrt_kernel_def_t* definition);
/* The same for a host operator. */
accrt_status_t accrt_operator_check_definition(const char* what,
                                               const accrt_operator_def_t* definition);
/* The parameters of a pack's kernel or operator in the form of a bundle's declaration. The lengths,
 * which are last, are left out (their number is returned), and so are fields that only operators
 * have. `params` has room for param_count, at most ACCRT_KERNEL_MAX_PARAMS. */
uint32_t accrt_kernel_plain_params(const accrt_kernel_param_t* params, uint32_t param_count,
                                   accrt_kernel_param_t* out_params);
/* NULL when bundles may call a kernel or operator with these traits, otherwise the reason.
 * Static. */
const char* accrt_kernel_bundles_refused(uint32_t traits);
/* Checks only the rules of a parameter block: known kinds, sizes by kind, ascending, not
 * overlapping, aligned, inside the block. Returns a static text and the index of the offending
 * parameter, or NULL without a fault. */
const char* accrt_kernel_check_params(const accrt_kernel_param_t* params, uint32_t param_count,
                                      uint32_t params_size_bytes, uint32_t* out_index);

/* What drivers see of a handle: a kernel of a host pack or of a module. */
const accrt_driver_kernel_t* accrt_kernel_driver_view(const accrt_kernel_t* kernel);
/* What drivers see of a host operator; NULL for a kernel. */
const accrt_driver_operator_t* accrt_kernel_operator_view(const accrt_kernel_t* kernel);

#endif /* ACCRT_RUNTIME_CORE_PACK_H_ */
