/* accrt/accrt.h - the whole public C API of libaccrt.
 *
 * To make and change bundles: accrt/write.h (libaccrt_write). For drivers: accrt/sys/driver.h. For
 * kernels: accrt/kernel.h alone.
 */
#ifndef ACCRT_ACCRT_H_
#define ACCRT_ACCRT_H_

#include "accrt/base.h"
#include "accrt/bundle.h"
#include "accrt/commands.h"
#include "accrt/counters.h"
#include "accrt/dlpack.h"
#include "accrt/instance.h"
#include "accrt/layout.h"
#include "accrt/memory.h"
#include "accrt/program.h"
#include "accrt/stream.h"
#include "accrt/tensor.h"
#include "accrt/trust.h"
#include "accrt/weights.h"

#endif /* ACCRT_ACCRT_H_ */
