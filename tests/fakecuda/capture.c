/* tests/fakecuda/capture.c - stream capture: what streams are asked to do becomes a
 * graph. Also the sets of nodes that captures and graphs go by. */
#include "graph.h"

#include <unistd.h>

struct capture {
  uint32_t references;
  CUstreamCaptureStatus status; /* NONE: it has ended */
  CUstreamCaptureMode mode;
  CUgraph graph;
  CUstream origin;
  pid_t thread;
  uint64_t id;
  capture_t* next; /* of those in progress */
};

static capture_t* captures;

/* ---- Sets of nodes ---- */

void node_set_free(node_set_t* set) {
  free(set->nodes);
  *set = (node_set_t){NULL, 0};
}

bool node_set_has(const node_set_t* set, CUgraphNode node) {
  for (uint32_t i = 0; i < set->count; ++i) {
    if (set->nodes[i] == node)
      return true;
  }
  return false;
}

void node_set_add(node_set_t* set, CUgraphNode node) {
  if (node_set_has(set, node))
    return;
  CUgraphNode* larger = realloc(set->nodes, (set->count + 1) * sizeof(CUgraphNode));
  if (larger == NULL)
    abort();
  set->nodes = larger;
  set->nodes[set->count++] = node;
}

void node_set_join(node_set_t* target, const node_set_t* source) {
  for (uint32_t i = 0; i < source->count; ++i)
    node_set_add(target, source->nodes[i]);
}

void node_set_copy(node_set_t* target, const node_set_t* source) {
  node_set_t copy = {NULL, 0};
  node_set_join(&copy, source);
  node_set_free(target);
  *target = copy;
}

/* ---- Captures ---- */

bool capture_is_active(const capture_t* capture) {
  return capture != NULL && capture->status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool capture_is_spoiled(const capture_t* capture) {
  return capture != NULL && capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

void capture_retain(capture_t* capture) {
  ++capture->references;
}

void capture_release(capture_t* capture) {
  if (--capture->references == 0)
    free(capture);
}

void capture_invalidate(capture_t* capture) {
  if (capture_is_active(capture))
    capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

void capture_enter(CUstream stream, capture_t* capture, const node_set_t* tips) {
  capture_leave(stream);
  stream->capture = capture;
  capture_retain(capture);
  node_set_copy(&stream->tips, tips);
}

void capture_leave(CUstream stream) {
  node_set_free(&stream->tips);
  capture_t* capture = stream->capture;
  stream->capture = NULL;
  if (capture == NULL)
    return;
  if (capture->origin == stream)
    capture_invalidate(capture);
  capture_release(capture);
}

CUresult capture_unsafe(CUcontext context) {
  (void)context;
  if (captures == NULL || fake_thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_SUCCESS;
  const pid_t self = gettid();
  CUresult result = CUDA_SUCCESS;
  for (capture_t* at = captures; at != NULL; at = at->next) {
    const bool is_global = fake_thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                           at->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    const bool is_own = at->thread == self && at->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!is_global && !is_own)
      continue;
    capture_invalidate(at);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

static CUstream implicit_capture(CUcontext context) {
  for (CUstream stream = context->streams; stream != NULL; stream = stream->next) {
    if (capture_is_active(stream->capture) && !(stream->flags & CU_STREAM_NON_BLOCKING))
      return stream;
  }
  return NULL;
}

/* Work on the legacy stream would have to follow, or precede, what is being captured. */
CUresult capture_implicit(CUcontext context) {
  if (implicit_capture(context) == NULL)
    return CUDA_SUCCESS;
  for (CUstream stream = context->streams; stream != NULL; stream = stream->next) {
    if (!(stream->flags & CU_STREAM_NON_BLOCKING))
      capture_invalidate(stream->capture);
  }
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult capture_any(CUcontext context) {
  CUresult result = CUDA_SUCCESS;
  for (CUstream stream = context->streams; stream != NULL; stream = stream->next) {
    if (!capture_is_active(stream->capture))
      continue;
    capture_invalidate(stream->capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

static CUgraphNodeType node_type(op_kind_t kind) {
  switch (kind) {
  case OP_KERNEL:
    return CU_GRAPH_NODE_TYPE_KERNEL;
  case OP_COPY:
    return CU_GRAPH_NODE_TYPE_MEMCPY;
  case OP_FILL:
    return CU_GRAPH_NODE_TYPE_MEMSET;
  case OP_HOST:
    return CU_GRAPH_NODE_TYPE_HOST;
  case OP_WRITE_VALUE:
  case OP_WAIT_VALUE:
    return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  default:
    return CU_GRAPH_NODE_TYPE_EMPTY;
  }
}

static CUDA_MEMCPY3D describe_copy(const op_copy_t* copy) {
  return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .srcDevice = copy->source,
                         .srcPitch = copy->source_stride[0],
                         .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .dstDevice = copy->target,
                         .dstPitch = copy->target_stride[0],
                         .WidthInBytes = copy->extent[0],
                         .Height = copy->extent[1],
                         .Depth = copy->extent[2]};
}

CUresult capture_add(CUstream stream, op_t* op) {
  if (stream->capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  CUgraphNode node = node_new(stream->capture->graph, node_type(op->kind), op, stream->context);
  if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY)
    node->copy = describe_copy(&node->op.as.copy);
  if (node->type == CU_GRAPH_NODE_TYPE_MEMSET) {
    const op_fill_t* fill = &node->op.as.fill;
    node->fill = (CUDA_MEMSET_NODE_PARAMS){fill->target,        fill->pitch, fill->value,
                                           fill->element_bytes, fill->width, fill->height};
  }
  node_set_copy(&node->before, &stream->tips);
  node_set_free(&stream->tips);
  node_set_add(&stream->tips, node);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture(CUstream hStream, CUstreamCaptureMode mode) {
  ENTER(NORMAL);
  CUstream stream = NULL;
  const CUresult result = stream_find(guard.context, hStream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream == stream->context->legacy)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (capture_is_active(stream->capture))
    return CUDA_ERROR_ILLEGAL_STATE;
  capture_t* capture = fake_allocate(sizeof *capture);
  capture->references = 1; /* the list's */
  capture->status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  capture->mode = mode;
  capture->graph = graph_new(true);
  capture->origin = stream;
  capture->thread = gettid();
  capture->id = ++fake.next_id;
  capture->next = captures;
  captures = capture;
  const node_set_t none = {NULL, 0};
  capture_enter(stream, capture, &none);
  return CUDA_SUCCESS;
}

/* Every end of the graph must be one that the first stream has come to. */
static bool is_joined(const capture_t* capture) {
  const CUgraph graph = capture->graph;
  for (uint32_t i = 0; i < graph->count; ++i) {
    bool is_end = true;
    for (uint32_t k = 0; k < graph->count; ++k)
      is_end &= !node_set_has(&graph->nodes[k]->before, graph->nodes[i]);
    if (is_end && !node_set_has(&capture->origin->tips, graph->nodes[i]))
      return false;
  }
  return true;
}

static void end_capture(capture_t* capture) {
  capture->status = CU_STREAM_CAPTURE_STATUS_NONE;
  for (capture_t** at = &captures; *at != NULL; at = &(*at)->next) {
    if (*at == capture) {
      *at = capture->next;
      break;
    }
  }
  for (CUcontext context = fake.contexts; context != NULL; context = context->next) {
    for (CUstream stream = context->streams; stream != NULL; stream = stream->next) {
      if (stream->capture == capture)
        capture_leave(stream);
    }
  }
  capture_release(capture);
}

EXPORT CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  ENTER(NORMAL);
  CUstream stream = NULL;
  CUresult result = stream_find(guard.context, hStream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (phGraph == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *phGraph = NULL;
  capture_t* capture = stream->capture;
  if (!capture_is_active(capture))
    return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) {
    capture_invalidate(capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != gettid())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  if (capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (!is_joined(capture))
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  if (result == CUDA_SUCCESS) {
    *phGraph = capture->graph;
    capture->graph->is_owned = false;
  } else {
    graph_free(capture->graph);
  }
  end_capture(capture);
  return result;
}

EXPORT CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  ENTER(NORMAL);
  CUstream stream = NULL;
  CUresult result = stream_find(guard.context, hStream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (captureStatus == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream == stream->context->legacy && implicit_capture(stream->context) != NULL)
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* which asking does not spoil */
  *captureStatus =
      stream->capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : stream->capture->status;
  return result;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream hStream,
                                          CUstreamCaptureStatus* captureStatus_out,
                                          cuuint64_t* id_out, CUgraph* graph_out,
                                          const CUgraphNode** dependencies_out,
                                          size_t* numDependencies_out);
EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream hStream,
                                          CUstreamCaptureStatus* captureStatus_out,
                                          cuuint64_t* id_out, CUgraph* graph_out,
                                          const CUgraphNode** dependencies_out,
                                          size_t* numDependencies_out) {
  ENTER(NORMAL);
  CUstream stream = NULL;
  const CUresult result = stream_find(guard.context, hStream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (captureStatus_out == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const capture_t* capture = stream->capture;
  *captureStatus_out = capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : capture->status;
  if (*captureStatus_out != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return CUDA_SUCCESS;
  if (id_out != NULL)
    *id_out = capture->id;
  if (graph_out != NULL)
    *graph_out = capture->graph;
  if (dependencies_out != NULL)
    *dependencies_out = stream->tips.nodes;
  if (numDependencies_out != NULL)
    *numDependencies_out = stream->tips.count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream hStream,
                                          CUstreamCaptureStatus* captureStatus_out,
                                          cuuint64_t* id_out, CUgraph* graph_out,
                                          const CUgraphNode** dependencies_out,
                                          const CUgraphEdgeData** edgeData_out,
                                          size_t* numDependencies_out);
EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream hStream,
                                          CUstreamCaptureStatus* captureStatus_out,
                                          cuuint64_t* id_out, CUgraph* graph_out,
                                          const CUgraphNode** dependencies_out,
                                          const CUgraphEdgeData** edgeData_out,
                                          size_t* numDependencies_out) {
  if (edgeData_out != NULL)
    *edgeData_out = NULL;
  return cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, graph_out, dependencies_out,
                                   numDependencies_out);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  ENTER(NEED_INIT);
  if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  const CUstreamCaptureMode before = fake_thread.capture_mode;
  fake_thread.capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}
