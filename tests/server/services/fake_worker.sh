#!/bin/sh
# Stands in for lorad-worker under the supervisor's test: fake_worker.sh WHAT [FILE]
case "$1" in
  talk) echo "hello"; echo "to stderr" >&2; printf 'no end of line'; exit 3 ;;
  stay) echo "here"; exec sleep 1000 ;;
  stubborn) trap '' TERM; echo "here"; while :; do sleep 0.05; done ;;
  long) head -c 20000 /dev/zero | tr '\0' x; echo; exec sleep 1000 ;;
  # A mask that is clear, and nothing open but the three.
  state) grep -E 'SigBlk' /proc/self/status; ls /proc/self/fd | wc -l; exec sleep 1000 ;;
esac
