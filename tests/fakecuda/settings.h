/* tests/fakecuda/settings.h - what settings.c offers to core.c. */
#ifndef FAKECUDA_SETTINGS_H_
#define FAKECUDA_SETTINGS_H_

#include "fake.h"

void settings_read(settings_t* settings);
void site_count(fake_site_t* entered, const char* name);
/* What this call of an entry point is to fail with; CUDA_SUCCESS: it does not. */
CUresult fault_for(const char* name);

#endif /* FAKECUDA_SETTINGS_H_ */
