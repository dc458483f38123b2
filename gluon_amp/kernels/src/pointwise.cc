// An operator that applies a program (pointwise.h) to blocked arrays. Inputs with one value per image and
// channel are broadcast.
#include <string>
#include <vector>

#include "parallel.h"
#include "pointwise.h"
#include "programs.h"
#include "shapes.h"

namespace gluon_amp {
namespace {

const PointwiseKernels& pointwise_kernels(Element element) {
  return kernels().pointwise[static_cast<int>(element)];
}

Program pointwise_program(const NodeAttrs& attrs) {
  return program_of(attrs, inputs_in(attrs, "num_inputs", 0));
}

// Calls body(group, span number) for all spans.
template <typename Body>
void for_each_span(const Spans& spans, Body body) {
  const int64_t per_group = spans.per_group(), count = spans.shape().groups * per_group;
#pragma omp parallel for schedule(static) if (spans.shape().size() > 2 * kBlock)
  for (int64_t k = 0; k < count; ++k) body(k / per_group, k % per_group);
}

void apply(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
           const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp || outputs[0].shape().Size() == 0) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  const mxnet::TShape& full = outputs[0].shape();
  const Program program = pointwise_program(attrs);
  const Spans spans(full, checked_channels(attrs, full), outputs[0].dtype());
  const auto operands = operands_of(attrs, inputs, 0, full);
  char* out = result_of<char>(outputs[0]);
  const auto& kernel = pointwise_kernels(element_of(attrs, outputs[0]));
  for_each_span(spans, [&](int64_t group, int64_t i) {
    Operand parts[kMaxInputs] = {};
    for (int v = 0; v < program.inputs; ++v) parts[v] = spans.operand(operands[v], group, i);
    kernel.forward(program, spans.span(group, i), parts, spans.at(out, false, group, i));
  });
}

// inputs: the gradient of the result, then what needs_of says; outputs: the gradients of all inputs
void apply_back(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                const Arrays& outputs) {
  const Program program = pointwise_program(attrs);
  const mxnet::TShape& full = inputs[0].shape();
  if (full.Size() == 0) return;
  const Needs needs = needs_of(program);
  const Spans spans(full, checked_channels(attrs, full), inputs[0].dtype());
  std::vector<int> indices;
  for (int v = 0; v < program.inputs; ++v) indices.push_back(v);
  TargetArrays targets(attrs, spans, outputs, req, indices, full);
  auto operands = operands_of(attrs, inputs, 1, full);
  const char* grad = values_of<char>(inputs[0]);
  const char* result = nullptr;
  if (needs == Needs::result) {
    CHECK(!operands[0].per_lane);
    result = static_cast<const char*>(operands[0].data);
    operands.clear();
  }
  const auto& kernel = pointwise_kernels(element_of(attrs, inputs[0]));
  for_each_span(spans, [&](int64_t group, int64_t i) {
    Operand parts[kMaxInputs] = {};
    Target part_targets[kMaxInputs];
    for (size_t v = 0; v < operands.size(); ++v) parts[v] = spans.operand(operands[v], group, i);
    targets.at(group, i, part_targets);
    kernel.backward(program, spans.span(group, i), spans.at(grad, false, group, i),
                    spans.at(result, false, group, i), parts, part_targets);
  });
  targets.finish();
}

// The largest of the inputs' shapes
mxnet::TShape largest(const NodeAttrs& attrs, const mxnet::ShapeVector& shapes) {
  mxnet::TShape full = shapes[0];
  for (const auto& shape : shapes) {
    CHECK_EQ(shape.ndim(), 5) << attrs.op->name << " expects arrays of 5 dimensions";
    for (int i : {2, 3}) full[i] = std::max(full[i], shape[i]);
  }
  return full;
}

bool infer_pointwise_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  for (const auto& shape : in) {
    if (!mxnet::shape_is_known(shape)) return false;
  }
  mxnet::TShape full = largest(attrs, in);
  checked_channels(attrs, full);
  bool any = false;
  for (const auto& shape : in) any = !is_per_lane(attrs, shape, full) || any;
  CHECK(any) << attrs.op->name << ": no input has the shape of the result, " << full;
  return unify(attrs, {&full, &out.at(0)});
}

}  // namespace

void register_pointwise() {
  const auto inputs = [](const NodeAttrs& attrs) -> uint32_t { return pointwise_program(attrs).inputs; };
  nnvm::Op* op = add_op("_gluon_amp_pointwise", inputs, 1, apply, infer_pointwise_shape, infer_one_dtype);
  may_work_in_place(op);
  const auto read = [](const ObjectPtr& node, const Entries& grads) {
    const Needs needs = needs_of(pointwise_program(node->attrs));
    if (needs == Needs::values) return and_all_inputs(node, {grads[0]});
    return needs == Needs::result ? and_result(node, grads) : grads;
  };
  const auto read_count = [=](const NodeAttrs& attrs) -> uint32_t {
    const Needs needs = needs_of(pointwise_program(attrs));
    return needs == Needs::nothing ? 1 : needs == Needs::result ? 2 : 1 + inputs(attrs);
  };
  may_work_in_place(add_gradient(op, read_count, apply_back, read));
}

}  // namespace gluon_amp
