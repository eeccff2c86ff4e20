#!/usr/bin/env bash
# lorad-plan as a program: examples in examples/plans, and what it says to what is wrong.
# usage: lorad_plan_test.sh EXAMPLE... (which are run)
set -euo pipefail

plan=$PWD/planner/lorad-plan
work=$TEST_TMPDIR
failed=0

fail() {
  echo "FAILED: $*" >&2
  failed=1
}

# run STATUS ARGUMENTS...: its output in $work/out and $work/err.
run() {
  local expected=$1 status=0
  shift
  "$plan" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  [ "$status" = "$expected" ] || {
    fail "lorad-plan $* exits with $status instead of $expected"
    head -n 20 "$work/out" "$work/err" >&2
  }
}

# said TEXT: stands in what the last run said.
said() { grep -qF -- "$1" "$work/out" "$work/err" || fail "nobody says '$1'; but: $(head -c 2000 "$work/err")"; }

commands=$("$plan" --help | sed -n '/^Subcommands:/,$s/^  \([a-z]\+\) .*/\1/p')
[ -n "$commands" ] || fail "no subcommands in --help"
for command in $commands; do
  ls "examples/plans/$command"*.json >"$work/examples" 2>/dev/null || fail "no example of $command in examples/plans"
  while read -r example; do
    [[ " $* " == *" $example "* ]] || continue
    echo "$command $example"
    run 0 "$command" "$example"
    [ -s "$work/out" ] || fail "$example prints nothing"
    cp "$work/out" "$work/first"
    run 0 "$command" "$example"
    cmp -s "$work/out" "$work/first" || fail "$example: two runs differ"
    run 0 "$command" --json "$example"
    head -c 1 "$work/out" | grep -q '{' || fail "$example --json prints no object"
  done <"$work/examples"

  # Not one of them takes an empty object, or what is not JSON.
  echo '{}' >"$work/empty.json"
  run 2 "$command" "$work/empty.json"
  said 'error: $'
  echo '{"a":' >"$work/broken.json"
  run 2 "$command" "$work/broken.json"
  said 'is no JSON'
done

run 2
run 2 nothing
said 'nothing is no subcommand'
run 0 --help
run 1 pack "$work/missing.json"
said 'missing.json cannot be read: No such file'
run 1 pack "$work"
said 'cannot be read: Is a directory'
run 2 pack -
said '$: is empty; write a scenario there'
: >"$work/nothing.json"
run 2 schedule "$work/nothing.json"
said 'nothing.json: $: is empty; write a scenario there'
said '`lora cluster --record FILE` writes one for schedule'
run 1 pack --trace "$work/trace.json" examples/plans/pack.json
said 'no timeline'

run 0 pipeline --trace "$work/trace.json" --svg "$work/picture.svg" --columns 40 examples/plans/pipeline.json
said 'stage 1 compute |'
grep -q '"traceEvents":\[' "$work/trace.json" || fail "no Chrome trace"
grep -q '^<svg .*' "$work/picture.svg" && grep -q '</svg>' "$work/picture.svg" || fail "no picture"
run 1 pipeline --trace "$work/missing/trace.json" examples/plans/pipeline.json
said 'cannot be written'
if [ -w /dev/full ]; then
  status=0
  "$plan" pack examples/plans/pack.json >/dev/full 2>"$work/err" || status=$?
  [ "$status" = 1 ] || fail "a full disk: exit status $status"
  : >"$work/out"
  said 'standard output cannot be written'
fi
"$plan" pipeline - <examples/plans/pipeline.json >"$work/piped" && "$plan" pipeline examples/plans/pipeline.json |
  cmp -s - "$work/piped" || fail "standard input gives another plan"

cat >"$work/bad.json" <<'END'
{"capacity": 0, "padding": 1.5, "adapters": [{"name": "a", "lengths": [-1, 3]}, {"lengths": []}], "more": 1}
END
run 2 pack "$work/bad.json"
for path in '$.capacity' '$.padding' '$.adapters[0].lengths[0]' '$.adapters[1].name' '$.adapters[1].lengths' '$.more'; do
  said "$path: "
done

[ "$failed" = 0 ] && echo "all passed"
exit "$failed"
