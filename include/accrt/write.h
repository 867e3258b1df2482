/* accrt/write.h - all of libaccrt_write, which makes and changes bundles.
 *
 * It uses libaccrt (accrt/accrt.h); link both: `-laccrt_write -laccrt`, pkg-config accrt_write, or
 * CMake's find_package(accrt COMPONENTS write) and accrt::write. The rules of accrt/base.h hold
 * here too: accrt_last_error has the full record of a failure.
 */
#ifndef ACCRT_WRITE_H_
#define ACCRT_WRITE_H_

#include "accrt/write/bundle_writer.h"
#include "accrt/write/quantize.h"
#include "accrt/write/rewrite.h"

ACCRT_BEGIN

/** Version of libaccrt_write, as ACCRT_MAKE_VERSION. Its minor version must be that of libaccrt
 * (accrt_version). Since: 0.4 */
ACCRT_API uint32_t accrt_write_version(void);

ACCRT_END
#endif /* ACCRT_WRITE_H_ */
