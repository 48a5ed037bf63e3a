// A subscription is kept until its end, also where the end comes first.
#include "ingest/document/job_watch.h"

#include <gtest/gtest.h>

#include <memory>

namespace quire {
namespace {

/// Returns a subscription that says through `gone` when it is dropped, and asks the watch then, as
/// what a listener holds may.
Subscription subscription_of(const JobWatch& watch, bool& gone) {
  return Subscription(std::shared_ptr<void>(&gone, [&watch, &gone](void*) {
    (void)watch.ended();
    gone = true;
  }));
}

TEST(JobWatch, KeepsASubscriptionUntilTheEnd) {
  JobWatch watch;
  bool gone = false;
  EXPECT_TRUE(watch.keep(subscription_of(watch, gone)));
  EXPECT_FALSE(watch.ended());
  EXPECT_FALSE(gone);
  watch.end();
  EXPECT_TRUE(watch.ended());
  EXPECT_TRUE(gone);
}

TEST(JobWatch, DropsASubscriptionThatComesAfterTheEnd) {
  JobWatch watch;
  watch.end();
  bool gone = false;
  EXPECT_FALSE(watch.keep(subscription_of(watch, gone)));
  EXPECT_TRUE(gone);
  watch.end();
  EXPECT_TRUE(watch.ended());
}

}  // namespace
}  // namespace quire
