// Recurrent layers, as MXNet's RNN. The products with the input of all time steps are one product, and so
// are the gradients of each weight. Between these, each time step has one product with the state, and one
// pass over the gates. In bfloat16, the operands of products are rounded: inputs, states, weights and the
// gradients of gates. All else is float32.
#include <algorithm>
#include <string>
#include <vector>

#include "inner_products.h"
#include "kernels.h"
#include "shapes.h"
#include "values.h"

namespace gluon_amp {
namespace recurrent {

const char* const kModes[] = {"rnn_relu", "rnn_tanh", "lstm", "gru"};
constexpr int kLstm = 2, kGru = 3, kGates[] = {1, 1, 4, 3};

struct Net {
  int mode;
  int64_t gates, hidden, layers, directions;  // gates: their number times `hidden`
  size_t parameters, states, masks;           // arrays among the inputs
  bool state_outputs;
  int64_t length, batch, inputs;  // of the data

  explicit Net(const NodeAttrs& attrs) {
    const std::string text = text_of(attrs, "mode");
    mode = static_cast<int>(std::find(kModes, kModes + 4, text) - kModes);
    CHECK_LT(mode, 4) << attrs.op->name << ": mode is " << text;
    hidden = integer_of(attrs, "state_size", 0);
    layers = integer_of(attrs, "num_layers", 0);
    CHECK(0 < hidden && hidden < 1 << 24 && 0 < layers && layers < 1 << 10)
        << attrs.op->name << ": state_size or num_layers";
    gates = kGates[mode] * hidden;
    directions = flag_of(attrs, "bidirectional") ? 2 : 1;
    parameters = count_of(attrs, "num_parameters");
    CHECK(parameters == 1 || parameters == count()) << attrs.op->name << ": num_parameters";
    states = mode == kLstm ? 2 : 1;
    masks = flag_of(attrs, "masked");
    CHECK(!masks || layers > 1) << attrs.op->name << ": masked expects several layers";
    state_outputs = flag_of(attrs, "state_outputs");
  }

  void set_data(const mxnet::TShape& shape) {
    length = shape[0];
    batch = shape[1];
    inputs = shape[2];
  }
  size_t all_inputs() const { return 1 + parameters + states + masks; }
  bool drops(int64_t layer) const { return masks && layer < layers - 1; }  // values of its result
  size_t visible() const { return state_outputs ? 1 + states : 1; }
  size_t count() const { return 4 * layers * directions; }
  int64_t rows() const { return length * batch; }
  int64_t width() const { return directions * hidden; }  // of a layer's result
  int64_t columns(int64_t layer) const { return layer ? width() : inputs; }

  // The place of a parameter: all weights come before all biases.
  size_t place(int64_t layer, int64_t direction, bool of_state, bool bias) const {
    return (bias ? count() / 2 : 0) + (layer * directions + direction) * 2 + of_state;
  }
  mxnet::TShape shape_of(size_t parameter) const {
    const bool bias = parameter >= count() / 2;
    mxnet::TShape shape(bias ? 1 : 2, gates);
    if (!bias) shape[1] = parameter % 2 ? hidden : columns(parameter / 2 / directions);
    return shape;
  }
  // Elements of all parameters
  int64_t size() const {
    int64_t sum = 0;
    for (size_t i = 0; i < count(); ++i) sum += shape_of(i).Size();
    return sum;
  }
  // The parameters, each as an array; of one array, which has them one after another, these are slices.
  Arrays split(const Arrays& arrays, size_t first) const {
    if (parameters > 1) return Arrays(arrays.begin() + first, arrays.begin() + first + parameters);
    Arrays slices;
    int64_t start = 0;
    for (size_t i = 0; i < count(); ++i) {
      const mxnet::TShape shape = shape_of(i);
      const int64_t end = start + shape.Size();
      slices.push_back(arrays[first].Slice(start, end).Reshape(shape));
      start = end;
    }
    return slices;
  }
};

// What the backward pass reads of one direction of a layer: arrays in one reserve of floats. Time step t
// has the states and what is carried at `slot(t)`, and reads those at `slot_before(t)`.
struct Reserve {
  float *gates, *carried, *kept;
  char* states;
  int64_t state_bytes;  // of one time step
  bool reversed;

  int64_t slot(int64_t t) const { return reversed ? t : t + 1; }
  int64_t slot_before(int64_t t) const { return reversed ? t + 1 : t; }
  char* all_states() const { return states + slot(0) * state_bytes; }
  char* all_states_before() const { return states + slot_before(0) * state_bytes; }
};

// Divides memory into arrays of floats.
class Pieces {
 public:
  explicit Pieces(float* memory) : start_(memory), next_(memory) {}
  float* take(int64_t floats) {
    float* piece = next_;
    next_ += (floats + 15) / 16 * 16;
    return piece;
  }
  int64_t size() const { return next_ - start_; }

 private:
  float *start_, *next_;
};

Reserve take_reserve(const Net& net, bool reversed, int64_t bytes, Pieces* pieces) {
  const int64_t step = net.batch * net.hidden, all = (net.length + 1) * step;
  Reserve r;
  r.gates = pieces->take(net.rows() * net.gates);
  r.carried = pieces->take(net.mode < kLstm ? 0 : all);
  r.kept = pieces->take(net.mode == kGru ? net.length * step : 0);
  r.states = reinterpret_cast<char*>(pieces->take(all));
  r.state_bytes = step * bytes;
  r.reversed = reversed;
  return r;
}

// The reserves of all layers and directions, and the results of layers of two directions or with dropout
struct Reserves {
  std::vector<Reserve> of;
  std::vector<char*> joined;
  int64_t size;

  Reserves(const Net& net, int64_t bytes, float* memory) {
    Pieces pieces(memory);
    for (int64_t layer = 0; layer < net.layers; ++layer) {
      for (int64_t d = 0; d < net.directions; ++d) of.push_back(take_reserve(net, d == 1, bytes, &pieces));
      const bool joins = net.directions == 2 || net.drops(layer);
      joined.push_back(joins ? reinterpret_cast<char*>(pieces.take(net.rows() * net.width()))
                             : of.back().all_states());
    }
    size = pieces.size();
  }
};

// ------------------------------------------------------------------------------------ products

// A description of the same memory with the two dimensions exchanged
dnnl_memory_desc_t transposed(dnnl_memory_desc_t desc) {
  auto& blocking = desc.format_desc.blocking;
  std::swap(desc.dims[0], desc.dims[1]);
  std::swap(desc.padded_dims[0], desc.padded_dims[1]);
  std::swap(blocking.strides[0], blocking.strides[1]);
  for (int i = 0; i < blocking.inner_nblks; ++i) blocking.inner_idxs[i] = 1 - blocking.inner_idxs[i];
  return desc;
}

void execute(const Plan& plan, const void* data, const void* weight, const float* bias, float* result) {
  plan.primitive->execute({{DNNL_ARG_SRC, &plan.data, data},
                           {DNNL_ARG_WEIGHTS, &plan.weight, weight},
                           {DNNL_ARG_BIAS, &plan.bias, bias},
                           {DNNL_ARG_DST, &plan.result, result}});
}

// The product with the states of a time step, or with the gradients of its products
class StepProduct {
 public:
  StepProduct(const Net& net, int64_t columns, int64_t hidden, const Precision& p, bool bias)
      : batch_(net.batch), columns_(columns), hidden_(hidden), element_(p.element) {
    if (p.dtype() == dnnl_bf16) {
      plan_ = plan_of({batch_, columns, hidden, dnnl_bf16, bias, true}, dnnl_forward_training);
      weight = plan_->weight;
      return;
    }
    weight = any_desc({hidden, columns}, stored_type(element_));
    weight.format_kind = dnnl_blocked;
    weight.padded_dims[0] = panels() * kPanel;
    auto& blocking = weight.format_desc.blocking;
    blocking.inner_nblks = 1;
    blocking.inner_blks[0] = kPanel;
    blocking.inner_idxs[0] = 0;
    blocking.strides[0] = columns * kPanel;
    blocking.strides[1] = kPanel;
  }

  void compute(const void* data, const void* packed, const float* bias, float* result) const {
    if (plan_) return execute(*plan_, data, packed, bias, result);
    const auto multiply = kernels().recurrent->multiply[static_cast<int>(element_)];
    const char* values = static_cast<const char*>(packed);
    const int64_t bytes = columns_ * (element_ == Element::kSingle ? 4 : 2);
#pragma omp parallel for schedule(static) if (batch_ * columns_ * hidden_ > kBlock)
    for (int64_t p = 0; p < panels(); ++p) {
      const int64_t first = p * kPanel;
      multiply({static_cast<const float*>(data), values + first * bytes, bias ? bias + first : nullptr,
                batch_, columns_, std::min<int64_t>(kPanel, hidden_ - first), hidden_, result + first});
    }
  }

  dnnl_memory_desc_t weight;

 private:
  int64_t panels() const { return (hidden_ + kPanel - 1) / kPanel; }

  const int64_t batch_, columns_, hidden_;
  const Element element_;
  std::shared_ptr<const Plan> plan_;
};

// Calls body(sequence) for all sequences of a time step.
template <typename Body>
void each_sequence(const Net& net, Body body) {
#pragma omp parallel for schedule(static) if (net.batch > 1 && net.batch * net.gates > kBlock / 4)
  for (int64_t b = 0; b < net.batch; ++b) body(b);
}

// -------------------------------------------------------------------------------- conversions

// Copies between rows of `width` bytes in arrays of other widths.
void copy_rows(const char* in, int64_t in_width, char* out, int64_t out_width, int64_t width, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) std::memcpy(out + i * out_width, in + i * in_width, width);
}

// Multiplies values by the mask of a layer's dropout: zeros, and the factor of those that are kept.
void apply_mask(const NDArray& masks, int64_t layer, void* values, int dtype, int64_t n) {
  const float* mask = values_of<float>(masks) + layer * n;
  in_parallel(n, [&](int64_t first, int64_t count) {
    float* floats = static_cast<float*>(values) + first;
    Bfloat* narrow = static_cast<Bfloat*>(values) + first;
    std::vector<float> wide(dtype == mshadow::kFloat32 ? 0 : count);
    if (!wide.empty()) kernels().from_bfloat(narrow, floats = wide.data(), count);
    for (int64_t i = 0; i < count; ++i) floats[i] *= mask[first + i];
    if (!wide.empty()) kernels().to_bfloat(floats, narrow, count);
  });
}

// ------------------------------------------------------------------------------------- forward

// inputs: data, parameters, the first state and, of an LSTM, the first cells, and if `masked`, for each layer
// but the last what its result is multiplied by; outputs: the result, the last state and cells if
// `state_outputs`, the reserve
void run(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
         const Arrays& outputs) {
  Net net(attrs);
  net.set_data(inputs[0].shape());
  if (net.rows() == 0) return;
  for (const auto request : req) CHECK_NE(request, mxnet::kAddTo);
  const int dtype = inputs[0].dtype();
  const Precision p = precision_of(attrs, inputs[0]);
  const auto product_type = p.dtype();
  const int64_t bytes = size_of_value(inputs[0]), step = net.batch * net.hidden;
  const Reserves reserves(net, bytes, result_of<float>(outputs.back()));
  const Arrays parameters = net.split(inputs, 1);
  const Kept kept = kept_of(attrs);
  const auto forward = kernels().recurrent->forward[net.mode][dtype == mshadow::kFloat32];
  const NDArray data = plain_copy(inputs[0]), first_state = plain_copy(inputs[1 + net.parameters]);
  const NDArray first_cells = plain_copy(inputs[net.parameters + net.states]);
  const NDArray masks = net.masks ? plain_copy(inputs.back()) : NDArray();
  std::vector<float> products(net.batch * net.gates);

  const char* read = values_of<char>(data);
  for (int64_t k = 0; k < net.layers * net.directions; ++k) {
    const int64_t layer = k / net.directions, d = k % net.directions;
    const Reserve& r = reserves.of[k];
    const auto arrays_of = [&](bool of_state) {
      return Arrays{data, parameters[net.place(layer, d, of_state, false)],
                    parameters[net.place(layer, d, of_state, true)]};
    };
    const Bias input_bias(p, arrays_of(false)), bias(p, arrays_of(true));
    const auto input_plan = plan_of({net.rows(), net.columns(layer), net.gates, product_type, true, true},
                                    dnnl_forward_training);
    const StepProduct product(net, net.hidden, net.gates, p, true);
    const auto input_weight = packed_weight(arrays_of(false)[1], input_plan->weight, p.element, kept);
    const auto weight = packed_weight(arrays_of(true)[1], product.weight, p.element, kept);
    execute(*input_plan, read, input_weight->data(), input_bias.data(), r.gates);

    const int64_t first = r.slot_before(r.reversed ? net.length - 1 : 0), last = net.length - first;
    const char* state = values_of<char>(first_state) + k * r.state_bytes;
    std::memcpy(r.states + first * r.state_bytes, state, r.state_bytes);
    if (net.mode >= kLstm) {
      const char* carried = values_of<char>(first_cells) + k * r.state_bytes;  // a GRU's are its states
      to_floats(carried, dtype, 0, r.carried + first * step, step);
    }
    for (int64_t i = 0; i < net.length; ++i) {
      const int64_t t = r.reversed ? net.length - 1 - i : i;
      product.compute(r.states + r.slot_before(t) * r.state_bytes, weight->data(), bias.data(),
                      products.data());
      each_sequence(net, [&](int64_t b) {
        const int64_t row = b * net.hidden, all = t * net.batch + b;
        forward({net.hidden, r.gates + all * net.gates, &products[b * net.gates],
                 r.carried + r.slot_before(t) * step + row, r.carried + r.slot(t) * step + row,
                 r.kept + all * net.hidden, r.states + r.slot(t) * r.state_bytes + row * bytes});
      });
    }
    if (net.state_outputs && req[1] != mxnet::kNullOp) {
      std::memcpy(result_of<char>(outputs[1]) + k * r.state_bytes, r.states + last * r.state_bytes,
                  r.state_bytes);
    }
    if (net.state_outputs && net.mode == kLstm) {
      Result(outputs[2], req[2]).write(r.carried + last * step, k * step, step);
    }
    if (net.directions == 2 || net.drops(layer)) {
      const int64_t width = net.hidden * bytes;
      copy_rows(r.all_states(), width, reserves.joined[layer] + d * width, net.width() * bytes, width,
                net.rows());
    }
    if (d < net.directions - 1) continue;
    if (net.drops(layer)) {
      apply_mask(masks, layer, reserves.joined[layer], dtype, net.rows() * net.width());
    }
    read = reserves.joined[layer];
  }
  if (req[0] != mxnet::kNullOp) {
    std::memcpy(result_of<char>(outputs[0]), read, net.rows() * net.width() * bytes);
  }
}

// ------------------------------------------------------------------------------------ backward

// inputs: the gradients of result, state and cells; data, parameters, masks, the reserve; outputs: the
// gradients of data, parameters, state and cells, and of masks, which is zero as if they were constants
void run_back(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
              const Arrays& outputs) {
  Net net(attrs);
  const size_t grads = net.visible();
  net.set_data(inputs[grads].shape());
  const Arrays parameters = net.split(inputs, grads + 1), gradients = net.split(outputs, 1);
  const auto request = [&](size_t place) { return req[net.parameters == 1 ? 1 : 1 + place]; };
  if (net.masks) write_zeros(outputs.back(), req.back());
  if (net.rows() == 0) {
    for (size_t i = 0; i < gradients.size(); ++i) write_zeros(gradients[i], request(i));
    return;
  }
  const NDArray data = plain_copy(inputs[grads]);
  const int dtype = data.dtype();
  const Precision p = precision_of(attrs, data);
  const auto product_type = p.dtype();
  const int64_t bytes = size_of_value(data), step = net.batch * net.hidden, gates = net.rows() * net.gates;
  const Reserves reserves(net, bytes, const_cast<float*>(values_of<float>(inputs.back())));
  const auto backward = kernels().recurrent->backward[net.mode][dtype == mshadow::kFloat32];
  const bool differ = net.mode == kGru;
  const size_t last_outputs = 1 + net.parameters;

  // The gradients of a layer's result, of one direction's, of states and products
  const int64_t most = std::max(net.width(), net.inputs) * net.rows();
  const int64_t sizes[] = {most, most, most, net.rows() * net.hidden, step, step, gates, differ * gates};
  Pieces measured(nullptr);
  for (const int64_t floats : sizes) measured.take(floats);
  Pieces pieces(static_cast<float*>(scratch(Purpose::kRecurrent, measured.size() * sizeof(float))));
  std::vector<float*> memory;
  for (const int64_t floats : sizes) memory.push_back(pieces.take(floats));
  float *grad = memory[0], *below = memory[1], *other = memory[2], *own = memory[3];
  float *later = memory[4], *carried = memory[5];
  char* of_inputs = reinterpret_cast<char*>(memory[6]);
  char* of_products = differ ? reinterpret_cast<char*>(memory[7]) : of_inputs;

  const NDArray head = plain_copy(inputs[0]);
  const NDArray masks = net.masks ? plain_copy(inputs[inputs.size() - 2]) : NDArray();
  const void* head_values = values_of<char>(head);
  in_parallel(net.rows() * net.width(), [&](int64_t first, int64_t count) {
    to_floats(head_values, dtype, first, grad + first, count);
  });
  // Reads the gradient of the last state (1) or cells (2) of a layer.
  const auto read_last = [&](size_t which, int64_t k, float* out) {
    if (which >= grads) return std::fill(out, out + step, 0.f);
    const NDArray last = plain_copy(inputs[which]);
    to_floats(values_of<char>(last), dtype, k * step, out, step);
  };
  for (int64_t layer = net.layers - 1; layer >= 0; --layer) {
    const char* read = layer ? reserves.joined[layer - 1] : values_of<char>(data);
    for (int64_t d = 0; d < net.directions; ++d) {
      const int64_t k = layer * net.directions + d;
      const Reserve& r = reserves.of[k];
      const int64_t width = net.hidden * sizeof(float);
      if (net.directions == 2) {
        const char* from = reinterpret_cast<const char*>(grad) + d * width;
        copy_rows(from, 2 * width, reinterpret_cast<char*>(own), width, width, net.rows());
      }
      const float* own_grad = net.directions == 2 ? own : grad;
      read_last(1, k, later);
      read_last(differ ? grads : 2, k, carried);
      const size_t input_place = net.place(layer, d, false, false), place = net.place(layer, d, true, false);
      const StepProduct product(net, net.gates, net.hidden, p, false);
      auto weight = packed_weight(parameters[place], transposed(product.weight), p.element, Kept::kForOneUse);
      for (int64_t i = 0; i < net.length; ++i) {
        const int64_t t = r.reversed ? i : net.length - 1 - i;
        each_sequence(net, [&](int64_t b) {
          const int64_t row = b * net.hidden, all = t * net.batch + b, gate = all * net.gates;
          backward({net.hidden, r.gates + gate, r.carried + r.slot_before(t) * step + row,
                    r.carried + r.slot(t) * step + row, r.kept + all * net.hidden,
                    own_grad + all * net.hidden, later + row, carried + row, of_inputs + gate * bytes,
                    of_products + gate * bytes});
        });
        product.compute(of_products + t * net.batch * net.gates * bytes, weight->data(), nullptr, later);
      }
      if (differ) kernels().add(carried, later, step);
      const auto write_state = [&](size_t i, const float* values) {
        Result(outputs[i], req[i], kNoRounding).write(values, k * step, step);
      };
      write_state(last_outputs, later);
      if (net.mode == kLstm) write_state(last_outputs + 1, carried);
      const auto write_weights = [&](const char* operand, const char* grads_of, bool of_state) {
        const size_t w = net.place(layer, d, of_state, false), b = net.place(layer, d, of_state, true);
        const int64_t columns = of_state ? net.hidden : net.columns(layer);
        write_weight_gradients({net.rows(), columns, net.gates, product_type, true, true}, operand, grads_of,
                               {gradients[w], gradients[b]}, {request(w), request(b)}, p.rounds_to_half());
      };
      write_weights(read, of_inputs, false);
      write_weights(r.all_states_before(), of_products, true);
      if (layer == 0 && req[0] == mxnet::kNullOp) continue;
      const int64_t columns = net.columns(layer);
      const auto data_plan = plan_of({net.rows(), net.gates, columns, product_type, false, true},
                                     dnnl_forward_training);
      weight = packed_weight(parameters[input_place], transposed(data_plan->weight), p.element, Kept::kForOneUse);
      execute(*data_plan, of_inputs, weight->data(), nullptr, d ? other : below);
      if (d) {
        in_parallel(net.rows() * columns, [&](int64_t i, int64_t count) {
          kernels().add(other + i, below + i, count);
        });
      }
    }
    std::swap(grad, below);
    if (layer && net.drops(layer - 1)) {
      apply_mask(masks, layer - 1, grad, mshadow::kFloat32, net.rows() * net.width());
    }
  }
  Result(outputs[0], req[0], kNoRounding).write_all(grad);
}

// --------------------------------------------------------------------------------- registration

uint32_t count_inputs(const NodeAttrs& attrs) { return Net(attrs).all_inputs(); }

bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  Net net(attrs);
  mxnet::TShape &data = in[0], &result = out.at(0);
  set_rank(attrs, data, 3);
  set_rank(attrs, result, 3);
  share_size(attrs, data, 0, result, 0);
  share_size(attrs, data, 1, result, 1);
  set_size(attrs, result, 2, net.width());
  std::vector<mxnet::TShape*> states;
  for (size_t i = 1; i <= net.states; ++i) states.push_back(&in[net.parameters + i]);
  for (size_t i = 1; i < net.visible(); ++i) states.push_back(&out[i]);
  for (auto* state : states) {
    set_rank(attrs, *state, 3);
    set_size(attrs, *state, 0, net.layers * net.directions);
    share_size(attrs, data, 1, *state, 1);
    set_size(attrs, *state, 2, net.hidden);
  }
  if (net.masks) {
    mxnet::TShape& masks = in.back();
    set_rank(attrs, masks, 4);
    set_size(attrs, masks, 0, net.layers - 1);
    share_size(attrs, data, 0, masks, 1);
    share_size(attrs, data, 1, masks, 2);
    set_size(attrs, masks, 3, net.width());
  }
  if (!mxnet::dim_size_is_known(data, 2)) return false;
  net.set_data(data);
  CHECK(0 < net.inputs && net.inputs < 1 << 24) << attrs.op->name << ": the data has no columns";
  for (size_t i = 0; i < net.parameters; ++i) {
    mxnet::TShape shape = net.parameters == 1 ? mxnet::TShape(1, net.size()) : net.shape_of(i);
    unify(attrs, {&in[1 + i], &shape});
  }
  if (!mxnet::shape_is_known(data)) return false;
  expect_addressable(attrs, data);
  CHECK(net.length < 1 << 24 && net.batch < 1 << 24) << attrs.op->name << ": the array is too large";
  mxnet::TShape reserve(1, Reserves(net, sizeof(float), nullptr).size);
  expect_addressable(attrs, reserve);
  unify(attrs, {&out.at(net.visible()), &reserve});
  return true;
}

// Data, states and results have one dtype, parameters those in which they are stored.
bool infer_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  const Net net(attrs);
  Ints values{in[0]}, results(out.begin(), out.begin() + net.visible());
  const auto states = in.begin() + 1 + net.parameters;
  values.insert(values.end(), states, states + net.states);
  const bool known = infer_one_dtype(attrs, values, results);
  for (size_t i = 1; i <= net.parameters; ++i) {
    if (in[i] == -1) in[i] = mshadow::kFloat32;
    CHECK(is_weight_type(in[i])) << attrs.op->name << ": weights of dtype " << in[i];
  }
  in[0] = values[0];
  std::fill(states, states + net.states, values[0]);
  if (net.masks) {
    CHECK(in.back() == -1 || in.back() == mshadow::kFloat32) << attrs.op->name << ": masks of another dtype";
    in.back() = mshadow::kFloat32;
  }
  std::fill(out.begin(), out.end(), values[0]);
  out[net.visible()] = mshadow::kFloat32;
  return known;
}

}  // namespace recurrent

void register_recurrent() {
  using recurrent::Net;
  const auto outputs = [](const NodeAttrs& attrs) -> uint32_t { return Net(attrs).visible() + 1; };
  const auto visible = [](const NodeAttrs& attrs) -> uint32_t { return Net(attrs).visible(); };
  const auto names = [](const NodeAttrs& attrs) {  // as MXNet's RNN has them
    const Net net(attrs);
    std::vector<std::string> all{"output", "state_output", "statecell_output"};
    all.resize(net.visible());
    all.emplace_back("reserve");
    return all;
  };
  nnvm::Op* op = add_op("_gluon_amp_rnn", recurrent::count_inputs, outputs, recurrent::run,
                        recurrent::infer_shape, recurrent::infer_type);
  set_visible(op, visible);
  set_attr(op, "FListOutputNames", Names(names), kPriority);
  const auto read = [](const ObjectPtr& node, const Entries& grads) {
    const Net net(node->attrs);
    const Entries& inputs = inputs_of(node);
    Entries entries(grads.begin(), grads.begin() + net.visible());
    entries.insert(entries.end(), inputs.begin(), inputs.begin() + 1 + net.parameters);
    entries.insert(entries.end(), inputs.end() - net.masks, inputs.end());
    entries.emplace_back(node, net.visible(), 0);
    return entries;
  };
  const auto read_count = [](const NodeAttrs& attrs) -> uint32_t {
    const Net net(attrs);
    return net.visible() + 2 + net.parameters + net.masks;
  };
  add_gradient(op, read_count, recurrent::run_back, read);
}

}  // namespace gluon_amp
