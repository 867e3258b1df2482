/* tests/cts/threaded_events.c - a part of threaded.c, which includes it: events, whose records are
 * points in a queue. */

/* ---- Events ---- */

static accrt_status_t event_create(accrt_driver_device_t* device, uint32_t flags,
                                   accrt_driver_event_t** out_event) {
  *out_event = NULL;
  accrt_driver_event_t* event =
      allocate(device->driver->environment, sizeof *event, "event_create");
  if (event == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  event->device = (threaded_device_t*)device;
  event->flags = flags;
  *out_event = event;
  return ACCRT_OK;
}

static void event_destroy(accrt_driver_event_t* event) {
  threaded_driver_t* driver = driver_of(&event->device->base);
  pthread_mutex_lock(&driver->mutex);
  drop_point(driver, event->point);
  pthread_mutex_unlock(&driver->mutex);
  deallocate(driver->base.environment, event, sizeof *event);
}

static accrt_status_t event_record(accrt_driver_queue_t* base, accrt_driver_event_t* event) {
  threaded_queue_t* queue = (threaded_queue_t*)base;
  threaded_driver_t* driver = driver_of(base->device);
  if (is_captured(queue))
    return refuse_captured(queue, "event_record");
  job_t* job = take_job(queue, JOB_RECORD, 0);
  point_t* point = job == NULL ? NULL : take_point(driver);
  if (point == NULL) {
    if (job != NULL && job->block != NULL)
      deallocate(driver->base.environment, job->block, job->block_capacity_bytes);
    if (job != NULL)
      deallocate(driver->base.environment, job, sizeof *job);
    return ACCRT_ERROR_OUT_OF_MEMORY;
  }
  point->references = 2; /* the event's and the job's */
  pthread_mutex_lock(&driver->mutex);
  drop_point(driver, event->point);
  event->point = point;
  job->point = point;
  pthread_mutex_unlock(&driver->mutex);
  append(queue, job);
  return ACCRT_OK;
}

static accrt_status_t event_wait(accrt_driver_queue_t* base, accrt_driver_event_t* event) {
  threaded_queue_t* queue = (threaded_queue_t*)base;
  if (is_captured(queue))
    return refuse_captured(queue, "event_wait");
  job_t* job = take_job(queue, JOB_WAIT, 0);
  if (job == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  threaded_driver_t* driver = lock_of(queue);
  job->point = event->point;
  if (job->point != NULL) {
    ++job->point->references;
  } else {
    job->next = queue->free_jobs; /* never recorded: for nothing */
    queue->free_jobs = job;
  }
  pthread_mutex_unlock(&driver->mutex);
  if (job->point != NULL)
    append(queue, job);
  return ACCRT_OK;
}

/* How the latest record is by the deadline: OK, NOT_READY, or its failure. */
static accrt_status_t look(accrt_driver_event_t* event, uint64_t deadline_ns) {
  threaded_driver_t* driver = driver_of(&event->device->base);
  accrt_error_t failure = {.status = ACCRT_OK};
  int reached = 1;
  pthread_mutex_lock(&driver->mutex);
  point_t* point = event->point;
  if (point != NULL) {
    ++point->references;
    int in_time = deadline_ns != 0;
    while (!point->reached && in_time)
      in_time = wait_change(driver, deadline_ns);
    reached = (int)point->reached;
    failure = point->failure;
    drop_point(driver, point);
  }
  pthread_mutex_unlock(&driver->mutex);
  if (!reached)
    return ACCRT_ERROR_NOT_READY;
  return failure.status == ACCRT_OK ? ACCRT_OK : report(driver, &failure);
}

static accrt_status_t event_query(accrt_driver_event_t* event) {
  return look(event, 0);
}

static accrt_status_t event_synchronize(accrt_driver_event_t* event, uint64_t timeout_ns,
                                        uint32_t policy) {
  (void)policy; /* always sleeps */
  const accrt_status_t status = look(event, deadline_of(timeout_ns));
  if (status != ACCRT_ERROR_NOT_READY)
    return status;
  return refuse(driver_of(&event->device->base), ACCRT_ERROR_TIMEOUT, "event_synchronize",
                "the time was over");
}

static accrt_status_t event_elapsed(accrt_driver_event_t* start, accrt_driver_event_t* end,
                                    int64_t* out_elapsed_ns) {
  threaded_driver_t* driver = driver_of(&start->device->base);
  *out_elapsed_ns = 0;
  pthread_mutex_lock(&driver->mutex);
  const int known = start->point != NULL && start->point->reached && end->point != NULL &&
                    end->point->reached && (start->flags & end->flags & ACCRT_EVENT_FLAG_TIMING);
  if (known)
    *out_elapsed_ns = (int64_t)(end->point->time_ns - start->point->time_ns);
  pthread_mutex_unlock(&driver->mutex);
  return known ? ACCRT_OK
               : refuse(driver, ACCRT_ERROR_INVALID_STATE, "event_elapsed",
                        "both events must be timed and reached");
}
