/// HookChain combines two hooks in one pass.
#pragma once

#include "engine/model/forward.h"

namespace quire {

/// HookChain calls two hooks in order; the second sees the first one's decisions. Either may be
/// null. Does not own them.
class HookChain final : public ForwardHook {
 public:
  HookChain(ForwardHook* first, ForwardHook* second) : first_(first), second_(second) {}

  bool needs_host(std::int32_t layer, HookPoint point, Compute& compute) const override {
    return (first_ != nullptr && first_->needs_host(layer, point, compute)) ||
           (second_ != nullptr && second_->needs_host(layer, point, compute));
  }
  bool wants_lse(std::int32_t layer) const override {
    return (first_ != nullptr && first_->wants_lse(layer)) ||
           (second_ != nullptr && second_->wants_lse(layer));
  }
  Status after_projection(LayerPass& pass) override {
    if (first_ != nullptr) QUIRE_RETURN_IF_ERROR(first_->after_projection(pass));
    return second_ != nullptr ? second_->after_projection(pass) : Status();
  }
  Status after_attention(LayerPass& pass) override {
    if (first_ != nullptr) QUIRE_RETURN_IF_ERROR(first_->after_attention(pass));
    return second_ != nullptr ? second_->after_attention(pass) : Status();
  }
  /// Calls the hooks in order until one attends.
  Result<bool> attend(LayerPass& pass, const AttentionArgs& dense) override {
    if (first_ != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(const bool attended, first_->attend(pass, dense));
      if (attended) return true;
    }
    if (second_ == nullptr) return false;
    return second_->attend(pass, dense);
  }
  bool empty() const { return first_ == nullptr && second_ == nullptr; }

 private:
  ForwardHook *first_, *second_;
};

}  // namespace quire
