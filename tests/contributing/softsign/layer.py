"""What each step of docs/internals/adding_a_layer.md adds for a toy layer: softsign, x / (1 + |x|)."""

# (step, file, text that occurs once, what replaces it; @ is that text)
INSERTIONS = (
    (1, "engine/include/dp/model.h", "struct Relu {};", "@\nstruct Softsign {};  // x / (1 + |x|)"),
    (1, "engine/include/dp/model.h", "std::variant<Input,", "@ Softsign,"),
    (1, "engine/include/dp/model.h", "Node relu(Node x);", "@\n  Node softsign(Node x);"),
    (1, "engine/base/model.cpp", "ModelBuilder::Node ModelBuilder::relu(Node x) {", """\
ModelBuilder::Node ModelBuilder::softsign(Node x) {
  const Shape in = shape_of(x, "softsign");
  return append("", Softsign{}, {x.index}, in);
}

@"""),
    (2, "engine/plan/fusion.h", "enum class NodeKind {", "@ softsign,"),
    (2, "engine/plan/fusion.cpp", "  void fill(Node& node, const Dropout&, std::size_t i) {", """\
  void fill(Node& node, const Softsign&, std::size_t i) {
    node.kind = NodeKind::softsign;
    take(node, i, "softsign");
  }
@"""),
    (3, "kernels/elementwise/op.h", "// y = a + b, then max(0, y) if relu.", """\
// y = x / (1 + |x|); may run in place.
struct SoftsignForward {
  static constexpr const char* kName = "softsign_forward";
  DP_ARGS(x, y);
  TensorDesc x;

  void check(const OpCheck& op) const { op.one_type({&x}); }
};
DP_ON_EVERY_BACKEND(SoftsignForward);

// dx = dy times the derivative at x; may run in place on dy. All tensors have x's layout.
struct SoftsignBackward {
  static constexpr const char* kName = "softsign_backward";
  DP_ARGS(dy, x, dx);
  TensorDesc x;

  void check(const OpCheck& op) const { op.one_type({&x}); }
};
DP_ON_EVERY_BACKEND(SoftsignBackward);

@"""),
    (3, "kernels/ops.h", "using OpDesc = std::variant<", "@SoftsignForward, SoftsignBackward, "),
    (4, "kernels/CMakeLists.txt", "  elementwise/cpu.cpp\n", "@  elementwise/softsign_reference.cpp\n"),
    (5, "kernels/CMakeLists.txt", "  elementwise/cpu_reorder.cpp\n", "  elementwise/cpu_softsign.cpp\n@"),
    (6, "kernels/device/cuda/sources.cmake", "    elementwise/cuda\n", "@    elementwise/cuda_softsign\n"),
    (7, "engine/plan/plan_builder.cpp", "  switch (node.kind) {\n", """\
@    case NodeKind::softsign:
      result.x = plan_.as(steps, node.name, x, plan_.computed(x.desc));
      result.y = plan_.new_value(result.x.desc);
      plan_.add(steps, node.name, "", plan_.make(SoftsignForward{result.x.desc}),
                {.x = result.x.where, .y = result.y.where});
      return;
"""),
    (7, "engine/plan/plan_backward.cpp", "  switch (node.kind) {\n", """\
@    case NodeKind::softsign: {
      const PlanValue to = gradients_.in_place_or_new(dy);
      plan_.add(steps, node.name, "backward", plan_.make(SoftsignBackward{from.desc}),
                {.dy = from.where, .x = result.x.where, .dx = to.where});
      return gradients_.give(node.inputs[0], to, true);
    }
"""),
    (8, "tests/kernels/CMakeLists.txt", "target_link_libraries(test_reference PRIVATE dp_op_rig)", """\
@
dp_add_test(softsign SOURCES softsign_test.cpp)
target_link_libraries(test_softsign PRIVATE dp_op_rig)"""),
    (8, "tests/cuda/CMakeLists.txt", "target_link_libraries(test_simulated_ops PRIVATE dp_op_rig)", """\
@
dp_add_simulated_test(simulated_softsign dp_simulated TIER all SOURCES ${PROJECT_SOURCE_DIR}/tests/kernels/softsign_test.cpp)
target_link_libraries(test_simulated_softsign PRIVATE dp_op_rig)"""),
)

# (step, file of this folder, the file that the step creates)
NEW_FILES = (
    (4, "reference.cpp", "kernels/elementwise/softsign_reference.cpp"),
    (5, "cpu.cpp", "kernels/elementwise/cpu_softsign.cpp"),
    (6, "cuda.cu", "kernels/elementwise/cuda_softsign.cu"),
    (8, "test.cpp", "tests/kernels/softsign_test.cpp"),
)

# (file, source): the compiler must reject the source if the insertions into the file are left out.
REFUSED = (
    ("engine/plan/fusion.cpp", "engine/plan/fusion.cpp"),
    ("engine/plan/plan_builder.cpp", "engine/plan/plan_builder.cpp"),
    ("engine/plan/plan_backward.cpp", "engine/plan/plan_backward.cpp"),
    ("kernels/elementwise/op.h", "kernels/ops.cpp"),
)
TESTS = ("test_softsign", "test_simulated_softsign")
