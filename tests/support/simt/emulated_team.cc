#include "tests/support/simt/emulated_team.h"

#include <utility>

namespace quire::simt {
namespace {

class EmulatedCommunicator final : public cuda::Communicator {
 public:
  explicit EmulatedCommunicator(std::vector<std::shared_ptr<EmulatedOps>> ranks)
      : ranks_(std::move(ranks)) {}

  Status broadcast(const void* from, std::span<void* const> to, std::int64_t bytes) override {
    std::lock_guard lock(mu_);
    if (to.size() != ranks_.size()) return Status::invalid("to", "one address a rank");
    const auto mail = std::make_shared<Mail>();
    QUIRE_RETURN_IF_ERROR(ranks_[0]->send(from, bytes, mail));
    for (std::size_t r = 1; r < ranks_.size(); ++r)
      QUIRE_RETURN_IF_ERROR(ranks_[r]->receive(to[r], bytes, mail, *ranks_[0]));
    return {};
  }
  Status gather(std::span<const Part> parts) override {
    std::lock_guard lock(mu_);
    if (parts.size() != ranks_.size()) return Status::invalid("parts", "one a rank");
    for (std::size_t r = 1; r < ranks_.size(); ++r) {
      if (parts[r].bytes == 0) continue;
      const auto mail = std::make_shared<Mail>();
      QUIRE_RETURN_IF_ERROR(ranks_[r]->send(parts[r].from, parts[r].bytes, mail));
      QUIRE_RETURN_IF_ERROR(ranks_[0]->receive(parts[r].to, parts[r].bytes, mail, *ranks_[r]));
    }
    return {};
  }
  Status all_gather(std::span<std::byte* const> whole,
                    std::span<const std::int64_t> begin) override {
    std::lock_guard lock(mu_);
    if (whole.size() != ranks_.size() || begin.size() != ranks_.size() + 1)
      return Status::invalid("whole", "one address a rank");
    // All send before one receives.
    std::vector<std::shared_ptr<Mail>> mails;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      mails.push_back(std::make_shared<Mail>());
      if (const std::int64_t bytes = begin[r + 1] - begin[r]; bytes > 0)
        QUIRE_RETURN_IF_ERROR(ranks_[r]->send(whole[r] + begin[r], bytes, mails[r]));
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      for (std::size_t other = 0; other < ranks_.size(); ++other) {
        const std::int64_t bytes = begin[other + 1] - begin[other];
        if (other == r || bytes == 0) continue;
        QUIRE_RETURN_IF_ERROR(
            ranks_[r]->receive(whole[r] + begin[other], bytes, mails[other], *ranks_[other]));
      }
    }
    return {};
  }
  Status status() const override { return {}; }

 private:
  std::mutex mu_;
  const std::vector<std::shared_ptr<EmulatedOps>> ranks_;
};

}  // namespace

EmulatedTeam make_emulated_team(std::int64_t ranks, EmulatedOpsOptions options) {
  options.lock = std::make_shared<std::recursive_mutex>();
  EmulatedTeam out;
  for (std::int64_t r = 0; r < ranks; ++r) {
    out.devices.push_back(make_emulated_ops(options));
    out.team.devices.push_back(out.devices.back());
  }
  if (ranks > 1) out.team.communicator = std::make_shared<EmulatedCommunicator>(out.devices);
  return out;
}

}  // namespace quire::simt
