#include "engine/device/team/team_memory.h"

#include <limits>
#include <string>

#include "kernels/matmul/group_of_blocks.h"

namespace quire {

Result<std::unique_ptr<ComputeMatrix>> TeamMemory::pack(std::span<const WeightPart> parts,
                                                        std::int64_t k, DType dtype,
                                                        WeightFormat format, bool gate_up,
                                                        std::span<const float> bias) const {
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t n, count_weight_rows(parts, k));
  if (gate_up && (n % 2 != 0 || (!bias.empty() && count_of(bias) != n)))
    return Status::invalid("parts", "gate and up projections have equally many outputs and biases");
  const std::int64_t copies = gate_up ? 2 : 1, dim = n / copies;
  const OutputCut cut = OutputCut::of(dim, ranks());
  std::vector<TeamMatrix::Share> shares(to_size(ranks()));
  for (std::int64_t r = 0; r < ranks(); ++r) {
    if (cut.size(r) == 0) continue;
    std::vector<OutputRange> outputs;
    std::vector<float> values;
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      const OutputRange range{copy * dim + cut.begin(r), copy * dim + cut.end(r)};
      outputs.push_back(range);
      if (bias.empty()) continue;
      const auto of_range = bias.subspan(to_size(range.begin), to_size(range.end - range.begin));
      values.insert(values.end(), of_range.begin(), of_range.end());
    }
    const auto on_rank = [r](const Status& status) {
      return status.with_context("GPU " + std::to_string(r) + " of model.tensor_parallel");
    };
    auto matrix = upload_matrix(rank(r), parts, k, dtype, format, outputs);
    if (!matrix.ok()) return on_rank(matrix.status());
    shares[at(r)].matrix = std::move(*matrix);
    if (values.empty()) continue;
    auto uploaded = upload(rank(r), std::as_bytes(std::span(values)));
    if (!uploaded.ok()) return on_rank(uploaded.status());
    shares[at(r)].bias = std::move(*uploaded);
  }
  return std::unique_ptr<ComputeMatrix>(std::make_unique<TeamMatrix>(n, k, cut, std::move(shares)));
}

Result<std::int64_t> TeamMemory::share_budget(const char* setting) const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t r = 1; r < ranks(); ++r) {
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t free, rank(r)->budget(0, setting));
    least = std::min(least, free);
  }
  return least;
}

}  // namespace quire
