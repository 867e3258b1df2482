/* serve/counters.h - an engine's counters, as a group of its instance's registry. */
#ifndef ACCRT_SERVE_COUNTERS_H_
#define ACCRT_SERVE_COUNTERS_H_

#include "accrt/counters.h"
#include "accrt/serve.h"

/* Adds the group of a complete engine to its instance. */
accrt_status_t accsv_counters_add(accrt_serve_engine_t* engine);
/* Removes it, if it was added. */
void accsv_counters_remove(accrt_serve_engine_t* engine);

/* How many values the group has, and what they are for these statistics. */
#define ACCSV_COUNTER_VALUES 141u
void accsv_counters_values(const accrt_serve_stats_t* stats, double* values);

#endif /* ACCRT_SERVE_COUNTERS_H_ */
