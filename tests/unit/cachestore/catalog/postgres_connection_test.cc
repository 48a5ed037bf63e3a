#include "cachestore/catalog/postgres_connection.h"

#include <gtest/gtest.h>

#include "cachestore/catalog/shared_catalog.h"

namespace quire {
namespace {

TEST(PostgresConnection, AddressesThatAreNoneAreRefusedWithoutTheirPassword) {
  for (const char* url :
       {"mysql://u:s3cr3t@h/d", "h:5432", "postgresql://u:s3cr3t@h/d?sslmode=maybe&colour=red",
        "postgresql://u:s3cr%zzt@h/d", "postgresql://u:s3cr3t@[::1/d"}) {
    const Status s = check_postgres_url(url);
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << url;
    EXPECT_EQ(s.field(), "catalog.url");
    EXPECT_EQ(s.message().find("s3cr"), std::string::npos) << s.message();
    EXPECT_NE(s.message().find("postgresql://user:password@host"), std::string::npos);
  }
}

TEST(PostgresConnection, AddressesOfEveryFormAreTaken) {
  for (const char* url :
       {"postgresql://u:p%40x@h:5433/d?sslmode=verify-full&sslrootcert=/etc/ca.pem", "postgres://h",
        "postgresql://a:5432,b:5433/d?target_session_attrs=read-write",
        "postgresql:///d?host=/var/run/postgresql"})
    EXPECT_TRUE(check_postgres_url(url).ok()) << url;
}

TEST(PostgresConnection, MessagesNameTheAddressWithoutUserAndPassword) {
  EXPECT_EQ(postgres_address("postgresql://u:s3cr3t@h:5433/d?sslmode=require"), "h:5433/d");
  EXPECT_EQ(postgres_address("postgresql://h/d"), "h:5432/d");
  EXPECT_EQ(postgres_address("postgresql://u:s3cr3t@a,b:5433/d"), "a:5432,b:5433/d");
}

TEST(PostgresConnection, NumbersAreSentWithTheHighestByteFirst) {
  EXPECT_EQ(PostgresValue(std::uint64_t{0x0102030405060708}).data(),
            std::string_view("\1\2\3\4\5\6\7\10"));
  const std::string bytes("a\0b", 3);
  EXPECT_EQ(PostgresValue(bytes).data(), bytes);
  // A copy has a number of its own.
  auto first = std::make_unique<PostgresValue>(std::uint64_t{5});
  const PostgresValue copy = *first;
  first.reset();
  EXPECT_EQ(copy.data().back(), '\5');
}

TEST(PostgresConnection, AServerThatIsNotThereIsAway) {
  const std::atomic<bool> never{false};
  const auto c = PostgresConnection::open("postgresql://u:s3cr3t@127.0.0.1:1/d",
                                          Clock::now() + std::chrono::seconds(5), never);
  EXPECT_TRUE(catalog_is_away(c.status()));
  EXPECT_EQ(c.status().message().find("s3cr3t"), std::string::npos) << c.status().message();
}

TEST(PostgresConnection, OfSeveralServersEachIsTriedWithinTheTime) {
  const std::atomic<bool> never{false};
  for (const char* url : {"postgresql://u:s3cr3t@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/d",
                          "postgresql:///d?host=a,b,c&hostaddr=127.0.0.1,127.0.0.1,127.0.0.1"
                          "&port=1,2,3&user=u&password=s3cr3t"}) {
    std::atomic<std::size_t> first{1};
    const auto c = PostgresConnection::open(url, Clock::now() + std::chrono::seconds(30), never,
                                            &first);
    ASSERT_TRUE(catalog_is_away(c.status()));
    const std::string& why = c.status().message();
    EXPECT_LT(why.find(":2: "), why.find(":3: ")) << why;
    EXPECT_LT(why.find(":3: "), why.find(":1: ")) << why;
    EXPECT_LT(why.find(":1: "), why.npos) << why;
    EXPECT_EQ(why.find("s3cr3t"), why.npos) << why;
    EXPECT_EQ(first, 1u);
    // Once the time is over, none is waited for.
    const auto late = Clock::now() - std::chrono::seconds(1);
    EXPECT_TRUE(catalog_is_away(PostgresConnection::open(url, late, never).status()));
    EXPECT_LT(Clock::now(), late + std::chrono::seconds(30));
  }
}

}  // namespace
}  // namespace quire
