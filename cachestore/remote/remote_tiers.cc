#include "cachestore/remote/remote_tiers.h"

#include <utility>

#include "cachestore/redis/redis_connection.h"
#include "cachestore/remote/redis_tier.h"
#include "cachestore/remote/remote_url.h"
#include "cachestore/remote/s3_tier.h"

namespace quire {

Result<RemoteCache::Tiers> open_remote_tiers(const RemoteOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(RemoteUrl url, parse_remote_url(options.url));
  RemoteCache::Tiers tiers;
  for (RedisServer& server : url.redis) {
    QUIRE_RETURN_IF_ERROR(check_tls_files(server));
    tiers.push_back(make_redis_tier(std::move(server), options.ttl_seconds));
  }
  for (S3Bucket& bucket : url.s3) {
    QUIRE_ASSIGN_OR_RETURN(auto tier, make_s3_tier(std::move(bucket)));
    tiers.push_back(std::move(tier));
  }
  return tiers;
}

}  // namespace quire
