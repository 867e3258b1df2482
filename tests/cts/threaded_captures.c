/* tests/cts/threaded_captures.c - a part of threaded.c, which includes it: native queues, which
 * other libraries may own and capture. What is captured is run again by capture_replay. */

/* One captured command, with what it needs. */
struct node {
  node_t* next;
  threaded_queue_t* queue;
  accrt_driver_command_t command;
  accrt_driver_submission_t submission;
  unsigned char* block;
  size_t block_bytes;
};

static void free_nodes(const accrt_driver_environment_t* environment, node_t* node) {
  while (node != NULL) {
    node_t* next = node->next;
    deallocate(environment, node->block, node->block_bytes);
    deallocate(environment, node, sizeof *node);
    node = next;
  }
}

static node_t* make_node(threaded_queue_t* queue, const accrt_driver_command_t* command,
                         const accrt_driver_submission_t* submission) {
  const accrt_driver_environment_t* environment = queue->base.device->driver->environment;
  node_t* node = allocate(environment, sizeof *node, "queue_execute");
  if (node == NULL)
    return NULL;
  node->block_bytes = submission_bytes(submission) + 16;
  node->block = allocate(environment, node->block_bytes, "queue_execute");
  if (node->block == NULL) {
    deallocate(environment, node, sizeof *node);
    return NULL;
  }
  unsigned char* cursor = node->block;
  node->queue = queue;
  node->command = *command;
  keep_submission(&cursor, submission, &node->submission);
  return node;
}

static int can_be_captured(const accrt_driver_list_t* list,
                           const accrt_driver_submission_t* submission) {
  for (uint32_t i = 0; i < list->command_count; ++i) {
    const accrt_driver_command_t* command = &list->commands[i];
    if (command->opcode == ACCRT_DRIVER_COMMAND_OPERATOR &&
        (command->as.invoke.operation->definition->traits & ACCRT_KERNEL_TRAIT_CAPTURABLE) == 0)
      return 0;
  }
  return submission->completion.done == NULL;
}

/* An operator is called now: what it enqueues is in the capture, it itself is not. */
static accrt_status_t capture_operator(threaded_queue_t* queue,
                                       const accrt_driver_command_t* command,
                                       const accrt_driver_submission_t* submission, node_t*** end) {
  accrt_error_t error;
  if (execute_operator(queue, command, submission, &error) != ACCRT_OK)
    return report(driver_of(queue->base.device), &error);
  for (uint32_t i = 0; i < queue->native->inner_count; ++i) {
    const accrt_driver_command_t fill = {.opcode = ACCRT_DRIVER_COMMAND_FILL,
                                         .as.fill = queue->native->inner[i]};
    **end = make_node(queue, &fill, submission);
    if (**end == NULL)
      return ACCRT_ERROR_OUT_OF_MEMORY;
    *end = &(**end)->next;
  }
  return ACCRT_OK;
}

static accrt_status_t capture_commands(threaded_queue_t* queue, const accrt_driver_list_t* list,
                                       const accrt_driver_submission_t* submission,
                                       node_t** out_first) {
  node_t** end = out_first;
  for (uint32_t i = 0; i < list->command_count; ++i) {
    if (list->commands[i].opcode == ACCRT_DRIVER_COMMAND_OPERATOR) {
      const accrt_status_t status = capture_operator(queue, &list->commands[i], submission, &end);
      if (status != ACCRT_OK)
        return status;
      continue;
    }
    *end = make_node(queue, &list->commands[i], submission);
    if (*end == NULL)
      return ACCRT_ERROR_OUT_OF_MEMORY;
    end = &(*end)->next;
  }
  return ACCRT_OK;
}

/* Adds the list to the capture, or nothing. Its number is over with those before it. */
static accrt_status_t capture_list(threaded_queue_t* queue, const accrt_driver_list_t* list,
                                   const accrt_driver_submission_t* submission) {
  threaded_driver_t* driver = driver_of(queue->base.device);
  if (!can_be_captured(list, submission))
    return refuse_captured(queue, "queue_execute");
  node_t* first = NULL;
  const accrt_status_t status = capture_commands(queue, list, submission, &first);
  if (status != ACCRT_OK) {
    free_nodes(driver->base.environment, first);
    return status;
  }
  lock_of(queue);
  node_t** end = &queue->native->graph;
  while (*end != NULL)
    end = &(*end)->next;
  *end = first;
  if (queue->ended_number == queue->enqueued_number) {
    queue->ended_number = submission->number;
    queue->good_number = submission->number;
  }
  queue->enqueued_number = submission->number;
  queue->captured_number = submission->number;
  unlock(driver);
  return ACCRT_OK;
}

static void capture_begin(void* stream) {
  native_t* native = stream;
  threaded_driver_t* driver = driver_of(&native->device->base);
  pthread_mutex_lock(&driver->mutex);
  native->is_captured = 1;
  unlock(driver);
}

static uint32_t capture_end(void* stream) {
  native_t* native = stream;
  threaded_driver_t* driver = driver_of(&native->device->base);
  uint32_t count = 0;
  pthread_mutex_lock(&driver->mutex);
  native->is_captured = 0;
  for (const node_t* node = native->graph; node != NULL; node = node->next)
    ++count;
  unlock(driver);
  return count;
}

static accrt_status_t capture_replay(void* stream) {
  const native_t* native = stream;
  accrt_error_t error;
  accrt_status_t status = ACCRT_OK;
  for (const node_t* node = native->graph; node != NULL && status == ACCRT_OK; node = node->next)
    status = run_one(node->queue, &node->command, &node->submission, &error);
  return status;
}

static void capture_forget(void* stream) {
  native_t* native = stream;
  free_nodes(native->device->base.driver->environment, native->graph);
  native->graph = NULL;
}

/* ---- Wrapped queues ---- */

static accrt_status_t queue_wrap(accrt_driver_device_t* device, void* stream,
                                 accrt_driver_queue_t** out_queue) {
  *out_queue = NULL;
  native_t* native = stream;
  if (&native->device->base != device)
    return refuse(driver_of(device), ACCRT_ERROR_INVALID_ARGUMENT, "queue_wrap",
                  "a queue of another device");
  threaded_queue_t* queue = allocate(device->driver->environment, sizeof *queue, "queue_wrap");
  if (queue == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  queue->base.device = device;
  queue->native = native;
  *out_queue = &queue->base;
  return ACCRT_OK;
}

static void* queue_native(accrt_driver_queue_t* queue) {
  return ((threaded_queue_t*)queue)->native;
}

/* ---- For the suite ---- */

static const image_table_t add_image = {
    "ACCRTBL",
    IMAGE_ARCH,
    1,
    {{"cts_add", FUNCTION_ADD, sizeof(cts_add_params_t), {1, 1, 1}, {{0, 8}, {8, 4}}, 0}}};
static const image_table_t add_twice_image = {
    "ACCRTBL",
    IMAGE_ARCH,
    1,
    {{"cts_add", FUNCTION_ADD_TWICE, sizeof(cts_add_params_t), {1, 1, 1}, {{0, 8}, {8, 4}}, 0}}};
static const image_table_t foreign_image = {
    "ACCRTBL",
    IMAGE_ARCH + 1,
    1,
    {{"cts_add", FUNCTION_ADD, sizeof(cts_add_params_t), {1, 1, 1}, {{0, 8}, {8, 4}}, 0}}};
static const accrt_driver_image_t images[3] = {
    {IMAGE_KIND, 0, &add_image, sizeof add_image, "add"},
    {IMAGE_KIND, 0, &add_twice_image, sizeof add_twice_image, "add twice"},
    {IMAGE_KIND, 0, &foreign_image, sizeof foreign_image, "foreign"}};
static const accrt_kernel_param_t add_params[2] = {
    ACCRT_KERNEL_PARAM(cts_add_params_t, address, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(cts_add_params_t, amount, SCALAR, NONE)};
static const accrt_kernel_def_t add_declared = {.struct_size = (uint32_t)sizeof add_declared,
                                                .name = "cts_add",
                                                .params = add_params,
                                                .param_count = 2,
                                                .params_size_bytes = sizeof(cts_add_params_t),
                                                .block = {1, 1, 1}};

static const accrt_driver_device_t* current_device(void) {
  return current_context;
}

__attribute__((visibility("default"))) const cts_hooks_t* accrt_cts_hooks(void);

const cts_hooks_t* accrt_cts_hooks(void) {
  static const cts_hooks_t hooks = {.struct_size = (uint32_t)sizeof hooks,
                                    .images_have_blocks = 1,
                                    .images_have_parameters = 1,
                                    .images = {&images[0], &images[1], &images[2]},
                                    .declared = &add_declared,
                                    .capture_begin = capture_begin,
                                    .capture_end = capture_end,
                                    .capture_replay = capture_replay,
                                    .capture_forget = capture_forget,
                                    .current_device = current_device,
                                    .enqueue_fill = enqueue_fill};
  return &hooks;
}
