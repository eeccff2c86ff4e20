// A visitor of a std::variant, made of one lambda for each alternative.
#pragma once

namespace lorad {

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace lorad
