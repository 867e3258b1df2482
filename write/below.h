/* write/below.h - calls of libaccrt.so's public functions from this library, as a user makes
 * them. */
#ifndef ACCRT_WRITE_BELOW_H_
#define ACCRT_WRITE_BELOW_H_

#include "accrt/instance.h"

/* Call it after a public function of libaccrt that returned `status`. It makes `operation`, a
 * public function of this library, the current operation again, and a failure becomes its failure
 * with the same status. Returns the status. */
accrt_status_t accx_below(const char* operation, accrt_status_t status);

#endif /* ACCRT_WRITE_BELOW_H_ */
