// The binary interface of MXNet 1.9.1's wheels, for registering operators with nnvm from outside.
//
// The wheels were built with GCC 4.8. The inline code of its headers has changed since then. Only this
// file depends on the differences:
//   - std::function passes arguments on by reference, then by value. So function types here have
//     references where MXNet's have pointers, which are passed in registers in the same way. An int
//     is declared as a reference that must not be read.
//   - std::unordered_map has grown. So graph nodes, which contain one, are created by MXNet's own
//     code. Of NodeAttrs, only the members up to and including `dict` are read. inputs_of computes
//     where a node's inputs are.
// The functions declared below are MXNet's own instances of its inline functions and templates. A new
// library is tried in a separate process before it is trusted (../obtain.py).
#pragma once

#include <mxnet/ndarray.h>
#include <mxnet/op_attr_types.h>
#include <nnvm/node.h>
#include <nnvm/op.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gluon_amp {

using Arrays = std::vector<mxnet::NDArray>;
using Entries = std::vector<nnvm::NodeEntry>;
using Ints = std::vector<int>;
using Requests = std::vector<mxnet::OpReqType>;
using nnvm::NodeAttrs;
using nnvm::ObjectPtr;

struct NotReadable;

// FComputeEx, FInplaceOption, FInplaceIdentity, FNumVisibleOutputs, FListOutputNames, FMutateInputs,
// FResourceRequest and FGradient, as in MXNet
using Compute = std::function<void(const NodeAttrs&, const mxnet::OpContext&, const Arrays&,
                                   const Requests&, const Arrays&)>;
using InplaceOption = std::function<std::vector<std::pair<int, int>>(const NodeAttrs&)>;
using InplaceIdentity = std::function<std::vector<bool>(const NodeAttrs&)>;
using Count = std::function<uint32_t(const NodeAttrs&)>;
using Names = std::function<std::vector<std::string>(const NodeAttrs&)>;
using MutateInputs = std::function<std::vector<uint32_t>(const NodeAttrs&)>;
using Resources = std::function<std::vector<mxnet::ResourceRequest>(const NodeAttrs&)>;
using Gradient = std::function<Entries(const ObjectPtr&, const Entries&)>;
// FInferShape, FInferType and FInferStorageType, with references instead of pointers
using InferShape = std::function<bool(const NodeAttrs&, mxnet::ShapeVector&, mxnet::ShapeVector&)>;
using InferType = std::function<bool(const NodeAttrs&, Ints&, Ints&)>;
using InferStorage =
    std::function<bool(const NodeAttrs&, NotReadable& device, mxnet::DispatchMode&, Ints&, Ints&)>;

// nnvm::Op::set_attr<T>(name, value, priority) for each of these types
#define GLUON_AMP_SET_ATTR(Type, mangled) \
  nnvm::Op& set_attr(nnvm::Op*, const std::string&, const Type&, int) asm(mangled)

GLUON_AMP_SET_ATTR(Compute,
                   "_ZN4nnvm2Op8set_attrISt8functionIFvRKNS_9NodeAttrsERKN5mxnet9OpContextERKSt6"
                   "vectorINS6_7NDArrayESaISB_EERKSA_INS6_9OpReqTypeESaISG_EESF_EEEERS0_RKSsRKT_i");
GLUON_AMP_SET_ATTR(InplaceOption,
                   "_ZN4nnvm2Op8set_attrISt8functionIFSt6vectorISt4pairIiiESaIS5_EERKNS_9NodeAttrs"
                   "EEEEERS0_RKSsRKT_i");
GLUON_AMP_SET_ATTR(InplaceIdentity,
                   "_ZN4nnvm2Op8set_attrISt8functionIFSt6vectorIbSaIbEERKNS_9NodeAttrsEEEEERS0_"
                   "RKSsRKT_i");
GLUON_AMP_SET_ATTR(Count, "_ZN4nnvm2Op8set_attrISt8functionIFjRKNS_9NodeAttrsEEEEERS0_RKSsRKT_i");
GLUON_AMP_SET_ATTR(Names,
                   "_ZN4nnvm2Op8set_attrISt8functionIFSt6vectorISsSaISsEERKNS_9NodeAttrsEEEEERS0_"
                   "RKSsRKT_i");
GLUON_AMP_SET_ATTR(MutateInputs,
                   "_ZN4nnvm2Op8set_attrISt8functionIFSt6vectorIjSaIjEERKNS_9NodeAttrsEEEEERS0_"
                   "RKSsRKT_i");
GLUON_AMP_SET_ATTR(Resources,
                   "_ZN4nnvm2Op8set_attrISt8functionIFSt6vectorIN5mxnet15ResourceRequestESaIS5_EERKNS"
                   "_9NodeAttrsEEEEERS0_RKSsRKT_i");
GLUON_AMP_SET_ATTR(Gradient,
                   "_ZN4nnvm2Op8set_attrISt8functionIFSt6vectorINS_9NodeEntryESaIS4_EERKSt10"
                   "shared_ptrINS_4NodeEERKS6_EEEERS0_RKSsRKT_i");
GLUON_AMP_SET_ATTR(InferShape,
                   "_ZN4nnvm2Op8set_attrISt8functionIFbRKNS_9NodeAttrsEPSt6vectorIN5mxnet6TShapeE"
                   "SaIS8_EESB_EEEERS0_RKSsRKT_i");
GLUON_AMP_SET_ATTR(InferType,
                   "_ZN4nnvm2Op8set_attrISt8functionIFbRKNS_9NodeAttrsEPSt6vectorIiSaIiEES9_EEEERS"
                   "0_RKSsRKT_i");
GLUON_AMP_SET_ATTR(InferStorage,
                   "_ZN4nnvm2Op8set_attrISt8functionIFbRKNS_9NodeAttrsEiPN5mxnet12DispatchModeEPSt"
                   "6vectorIiSaIiEESC_EEEERS0_RKSsRKT_i");
GLUON_AMP_SET_ATTR(bool, "_ZN4nnvm2Op8set_attrIbEERS0_RKSsRKT_i");
GLUON_AMP_SET_ATTR(std::string, "_ZN4nnvm2Op8set_attrISsEERS0_RKSsRKT_i");

// nnvm::Op::GetAttr<T>(name) for some of these types
const nnvm::OpMap<Compute>& computes_of(const std::string& name) asm(
    "_ZN4nnvm2Op7GetAttrISt8functionIFvRKNS_9NodeAttrsERKN5mxnet9OpContextERKSt6vectorINS6_7NDArray"
    "ESaISB_EERKSA_INS6_9OpReqTypeESaISG_EESF_EEEERKNS_5OpMapIT_EERKSs");
const nnvm::OpMap<InferShape>& shapes_of(const std::string& name) asm(
    "_ZN4nnvm2Op7GetAttrISt8functionIFbRKNS_9NodeAttrsEPSt6vectorIN5mxnet6TShapeESaIS8_EESB_EEEERKNS"
    "_5OpMapIT_EERKSs");
const nnvm::OpMap<Resources>& resources_of(const std::string& name) asm(
    "_ZN4nnvm2Op7GetAttrISt8functionIFSt6vectorIN5mxnet15ResourceRequestESaIS5_EERKNS_9NodeAttrsEEEE"
    "ERKNS_5OpMapIT_EERKSs");

constexpr int kPriority = 10;  // nnvm's default

nnvm::Op& register_or_get(dmlc::Registry<nnvm::Op>*, const std::string& name) asm(
    "_ZN4dmlc8RegistryIN4nnvm2OpEE19__REGISTER_OR_GET__ERKSs");

// mxnet::op::MakeGradNode: returns the entries of a new node that computes a gradient of `forward`
Entries make_grad_node(const char* op, const ObjectPtr& forward, const Entries& inputs,
                       const std::unordered_map<std::string, std::string>& attributes)
    asm("_ZN5mxnet2op12MakeGradNodeEPKcRKSt10shared_ptrIN4nnvm4NodeEERKSt6vectorINS4_9NodeEntryESaIS"
        "A_EERKSt13unordered_mapISsSsSt4hashISsESt8equal_toISsESaISt4pairIKSsSsEEE");

// The inputs of a node. Before them there is one std::unordered_map, in NodeAttrs. It had 48 bytes.
inline const Entries& inputs_of(const ObjectPtr& node) {
  constexpr size_t growth = sizeof(std::unordered_map<std::string, std::string>) - 48;
  const char* place = reinterpret_cast<const char*>(&node->inputs) - growth;
  return *reinterpret_cast<const Entries*>(place);
}

}  // namespace gluon_amp
