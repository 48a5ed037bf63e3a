#include "server/reply/list_reply.h"

#include <utility>

namespace quire {
namespace json = boost::json;
namespace {

using P = ListPage;

/// Returns the id of an item. None: the list is empty.
std::optional<json::value> id_of(const P& page, const json::value* item) {
  const json::value* id = item ? item->as_object().if_contains(page.id_member) : nullptr;
  return id ? std::optional(*id) : std::nullopt;
}

Reply<P>::Fields fields(const Kind& item, const Kind& id) {
  return {{"object", kind::constant("list")},
          {"data", kind::list(item), [](const P& p) { return p.data; }},
          {"first_id", kind::or_null(id),
           [](const P& p) { return id_of(p, p.data.empty() ? nullptr : &p.data.front()); },
           "null: the list is empty"},
          {"last_id", kind::or_null(id),
           [](const P& p) { return id_of(p, p.data.empty() ? nullptr : &p.data.back()); },
           "What `after` takes for the next page"},
          {"has_more", kind::flag(), [](const P& p) { return p.has_more; }}};
}

}  // namespace

Reply<ListPage> list_reply(std::string_view name, const Kind& item, const Kind& id) {
  return {name, "", fields(item, id)};
}

const Reply<ListPage>& document_list_reply() {
  static const Reply<P> reply(
      "DocumentList", "",
      Reply<P>::joined({fields(kind::component("Document"), kind::text()),
                        {{"counts", kind::optional(kind::component("DocumentCounts")),
                          [](const P& p) { return p.counts; }, "With `include` counts"}}}));
  return reply;
}

json::object list_json(json::array data, bool has_more, std::string_view id_member) {
  static const Reply<P> reply = list_reply("", kind::map());
  return reply.json(P{std::move(data), has_more, id_member});
}

}  // namespace quire
