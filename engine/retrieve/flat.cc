// The exact counterpart of CTkvr (algorithms §10): every host row is scored in every step, and the best are attended to. What an index of rows can reach at most.
#include <numeric>

#include "engine/retrieve/row_choice.h"
#include "engine/retrieve/row_retriever.h"
#include "engine/retrieve/stopwatch.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> options = row_options("1600");
  return options;
}

class FlatRetriever final : public RowRetriever {
 public:
  std::string_view name() const override { return "flat"; }
  std::span<const PlugOption> options() const override { return table(); }
  Status check(const PlugOptions& options) const override { return read_row_policy(options, table()).status(); }

 protected:
  Result<RowPolicy> read(const PlugOptions& options) override {
    choices_ = std::vector<Head>(static_cast<std::size_t>(input().num_kv_heads));
    return read_row_policy(options, table());
  }

  Result<HostCounts> attend_host(const HostStep& step) override {
    const Stopwatch watch;
    Head& head = choices_[static_cast<std::size_t>(step.kv_head)];
    head.rows.resize(static_cast<std::size_t>(step.host.end - step.host.begin));
    std::iota(head.rows.begin(), head.rows.end(), static_cast<std::int32_t>(step.host.begin));
    QUIRE_RETURN_IF_ERROR(head.choice.score(step, head.rows));
    const auto chosen = head.choice.best(policy().chosen);
    const double choose_ms = watch.ms();
    QUIRE_RETURN_IF_ERROR(head.choice.attend(step, chosen));
    return HostCounts{static_cast<std::int64_t>(head.rows.size()), static_cast<std::int64_t>(chosen.size()), choose_ms};
  }

 private:
  struct Head {
    std::vector<std::int32_t> rows;
    RowChoice choice;
  };
  std::vector<Head> choices_;  ///< [num_kv_heads]
};

}  // namespace

std::unique_ptr<Retriever> make_flat_retriever() { return std::make_unique<FlatRetriever>(); }

}  // namespace quire
