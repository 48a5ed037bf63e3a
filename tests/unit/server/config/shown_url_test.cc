#include "server/config/shown_url.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(ShownUrl, SecretsAreHiddenAndTheRestStays) {
  for (const auto& [url, shown] : {
           std::pair{"redis://u:pw@h1:6379,h2", "redis://u:***@h1:6379,h2"},
           {"redis://:p@ss/w@h", "redis://:***@h"},
           {"rediss://h?ca=/a.pem&key=/k.pem", "rediss://h?ca=/a.pem&key=/k.pem"},
           {"redis+sentinel://h/m?sentinel_user=s&sentinel_password=x&ca=y",
            "redis+sentinel://h/m?sentinel_user=s&sentinel_password=***&ca=y"},
           {"postgresql://h/db?user=u&password=x", "postgresql://h/db?user=u&password=***"},
           {"postgresql://u@h/db?sslPassword=x", "postgresql://u@h/db?sslPassword=***"},
           {"http://127.0.0.1:4318/v1/traces", "http://127.0.0.1:4318/v1/traces"},
           {"https://u:pw@h:8/v1?a=b", "https://u:***@h:8/v1?a=b"},
           {"s3://bucket/prefix?endpoint=http://h", "s3://bucket/prefix?endpoint=http://h"},
           {"redis://u:pw@h s3://bucket?endpoint=http://h",
            "redis://u:***@h s3://bucket?endpoint=http://h"},
           {"s3://bucket?endpoint=http://h redis://u:pw@h",
            "s3://bucket?endpoint=http://h redis://u:***@h"},
           {"s3://bucket  redis+sentinel://:p?w@h/m", "s3://bucket  redis+sentinel://:***@h/m"},
           {"redis://:p w@h", "redis://:***@h"},
           {"postgresql://u:p?w@h/db?sslpassword=x", "postgresql://u:***@h/db?sslpassword=***"},
           {"https://h/v1/embeddings?api-version=1&api_key=x&apiKey=y&key=z",
            "https://h/v1/embeddings?api-version=1&api_key=***&apiKey=***&key=***"},
           {"https://h/traces?sv=1&sig=x%2By&X-Amz-Signature=z",
            "https://h/traces?sv=1&sig=***&X-Amz-Signature=***"},
           {"models/demo", "models/demo"},
           {"", ""},
       }) {
    EXPECT_EQ(url_without_secrets(url), shown);
    EXPECT_EQ(url_without_secrets(shown), shown);
  }
}

}  // namespace
}  // namespace quire
