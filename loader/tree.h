/* loader/tree.h - the code root of an open bundle (format/tree.h says what it covers). */
#ifndef ACCRT_LOADER_TREE_H_
#define ACCRT_LOADER_TREE_H_

#include "format/tree.h"
#include "loader/internal.h"

/* Reads all that the code root covers. `out_images`: NULL, or it gets the SHA-256 of each host
 * image, in the order of the table. Blocks on the file. */
accrt_status_t accx_tree_code_root(accrt_bundle_t* bundle, accrt_key_t* out_root,
                                   accrt_key_t* out_images);

#endif /* ACCRT_LOADER_TREE_H_ */
