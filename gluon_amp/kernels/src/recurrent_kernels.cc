// The loops of recurrent_kernels.h, compiled three times as kernels.cc is.
#include "recurrent_kernels.h"

#include "vector_math.h"

namespace gluon_amp {
namespace {

template <typename V>
V one_minus(V x) {
  return V::all(1) - x;
}

struct Relu {
  template <typename V>
  static V of(V x) {
    return x.or_zero();
  }
  template <typename V>
  static V grad(V grad, V y) {
    return grad.where_positive(y, V::all(0));
  }
};

struct Tanh {
  template <typename V>
  static V of(V x) {
    return tanh(x);
  }
  template <typename V>
  static V grad(V grad, V y) {
    return grad * one_minus(y * y);
  }
};

template <typename V>
V sigmoid_grad(V grad, V y) {
  return grad * y * one_minus(y);
}

template <typename Function, typename T>
void simple(const CellStep& s) {
  T* state = static_cast<T*>(s.state);
  each(0, s.size, [=](auto v, int64_t i) {
    const auto y = Function::of(v.load(s.gates + i) + v.load(s.products + i));
    y.store(s.gates + i);
    y.store(state + i);
  });
}

template <typename Function, typename T>
void simple_back(const CellGrad& s) {
  T* inputs = static_cast<T*>(s.inputs);
  each(0, s.size, [=](auto v, int64_t i) {
    Function::grad(v.load(s.grad + i) + v.load(s.later + i), v.load(s.gates + i)).store(inputs + i);
  });
}

template <typename T>
void lstm(const CellStep& s) {
  const int64_t n = s.size;
  T* state = static_cast<T*>(s.state);
  each(0, n, [=](auto v, int64_t i) {
    const auto sum = [&](int gate) {
      return v.load(s.gates + gate * n + i) + v.load(s.products + gate * n + i);
    };
    const auto in = sigmoid(sum(0)), forget = sigmoid(sum(1)), value = tanh(sum(2));
    const auto out = sigmoid(sum(3)), cell = fused(forget, v.load(s.before + i), in * value);
    in.store(s.gates + i);
    forget.store(s.gates + n + i);
    value.store(s.gates + 2 * n + i);
    out.store(s.gates + 3 * n + i);
    cell.store(s.after + i);
    (out * tanh(cell)).store(state + i);
  });
}

template <typename T>
void lstm_back(const CellGrad& s) {
  const int64_t n = s.size;
  T* inputs = static_cast<T*>(s.inputs);
  each(0, n, [=](auto v, int64_t i) {
    const auto in = v.load(s.gates + i), forget = v.load(s.gates + n + i);
    const auto value = v.load(s.gates + 2 * n + i), out = v.load(s.gates + 3 * n + i);
    const auto bounded = tanh(v.load(s.after + i)), grad = v.load(s.grad + i) + v.load(s.later + i);
    const auto cell = fused(grad * out, one_minus(bounded * bounded), v.load(s.carried + i));
    sigmoid_grad(cell * value, in).store(inputs + i);
    sigmoid_grad(cell * v.load(s.before + i), forget).store(inputs + n + i);
    Tanh::grad(cell * in, value).store(inputs + 2 * n + i);
    sigmoid_grad(grad * bounded, out).store(inputs + 3 * n + i);
    (cell * forget).store(s.carried + i);
  });
}

template <typename T>
void gru(const CellStep& s) {
  const int64_t n = s.size;
  T* state = static_cast<T*>(s.state);
  each(0, n, [=](auto v, int64_t i) {
    const auto reset = sigmoid(v.load(s.gates + i) + v.load(s.products + i));
    const auto keep = sigmoid(v.load(s.gates + n + i) + v.load(s.products + n + i));
    const auto product = v.load(s.products + 2 * n + i);
    const auto value = tanh(fused(reset, product, v.load(s.gates + 2 * n + i)));
    const auto y = fused(keep, v.load(s.before + i), one_minus(keep) * value);
    reset.store(s.gates + i);
    keep.store(s.gates + n + i);
    value.store(s.gates + 2 * n + i);
    product.store(s.kept + i);
    y.store(s.after + i);
    y.store(state + i);
  });
}

template <typename T>
void gru_back(const CellGrad& s) {
  const int64_t n = s.size;
  T *inputs = static_cast<T*>(s.inputs), *products = static_cast<T*>(s.products);
  each(0, n, [=](auto v, int64_t i) {
    const auto reset = v.load(s.gates + i), keep = v.load(s.gates + n + i);
    const auto value = v.load(s.gates + 2 * n + i);
    const auto grad = v.load(s.grad + i) + v.load(s.later + i) + v.load(s.carried + i);
    const auto of_keep = sigmoid_grad(grad * (v.load(s.before + i) - value), keep);
    const auto of_value = Tanh::grad(grad * one_minus(keep), value);
    const auto of_reset = sigmoid_grad(of_value * v.load(s.kept + i), reset);
    of_reset.store(inputs + i);
    of_reset.store(products + i);
    of_keep.store(inputs + n + i);
    of_keep.store(products + n + i);
    of_value.store(inputs + 2 * n + i);
    (of_value * reset).store(products + 2 * n + i);
    (grad * keep).store(s.carried + i);
  });
}

constexpr int kVectors = kPanel / Many::width;
constexpr int kMostRows = kVectors == 1 ? 8 : 4;  // so that sums fill the registers

template <typename T, int rows>
void multiply_rows(const PanelProduct& p, int64_t first) {
  float part[kPanel] = {};
  for (int64_t i = 0; p.bias && i < p.width; ++i) part[i] = p.bias[i];
  Many sums[rows][kVectors];
  for (auto& sum : sums) {
    for (int v = 0; v < kVectors; ++v) sum[v] = Many::load(part + v * Many::width);
  }
  const float* data = p.data + first * p.columns;
  const T* panel = static_cast<const T*>(p.panel);
  for (int64_t k = 0; k < p.columns; ++k, panel += kPanel) {
    Many weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = Many::load(panel + v * Many::width);
    for (int r = 0; r < rows; ++r) {
      const Many x = Many::all(data[r * p.columns + k]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fused(x, weights[v], sums[r][v]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v].store(part + v * Many::width);
    for (int64_t i = 0; i < p.width; ++i) p.out[(first + r) * p.stride + i] = part[i];
  }
}

template <typename T>
void multiply(const PanelProduct& p) {
  int64_t r = 0;
  for (; r + kMostRows <= p.rows; r += kMostRows) multiply_rows<T, kMostRows>(p, r);
  for (; r + 2 <= p.rows; r += 2) multiply_rows<T, 2>(p, r);
  if (r < p.rows) multiply_rows<T, 1>(p, r);
}

const RecurrentKernels recurrent_table = {
    {{simple<Relu, Bfloat>, simple<Relu, float>},
     {simple<Tanh, Bfloat>, simple<Tanh, float>},
     {lstm<Bfloat>, lstm<float>},
     {gru<Bfloat>, gru<float>}},
    {{simple_back<Relu, Bfloat>, simple_back<Relu, float>},
     {simple_back<Tanh, Bfloat>, simple_back<Tanh, float>},
     {lstm_back<Bfloat>, lstm_back<float>},
     {gru_back<Bfloat>, gru_back<float>}},
    {multiply<Bfloat>, multiply<half_bits>, multiply<float>}};

}  // namespace

const RecurrentKernels* GLUON_AMP_NAMED(recurrent_kernels)() { return &recurrent_table; }

}  // namespace gluon_amp
