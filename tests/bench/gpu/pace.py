"""Tokens a second of jobs that are asked, again and again, how far they are."""


class Pace:
    """Between two moments at which steps had just ended: the first poll from step `warm_up_steps` on, and the last one at which tokens had come.

    Tokens come a step at a time, when it ends. So a poll at which none had come says nothing: time up to it would count a part of a step
    whose tokens do not, up to a whole one where the last poll is the last before the jobs end.
    """

    def __init__(self, warm_up_steps):
        self.warm_up_steps = warm_up_steps
        self.first = self.last = None  # (seconds, tokens)

    def see(self, seconds, tokens, step):
        """A poll: at this time, all jobs' tokens so far, and the step of the one that is least far. True where it is the first that counts."""
        if self.first is None:
            if step < self.warm_up_steps:
                return False
            self.first = self.last = (seconds, tokens)
            return True
        if tokens > self.last[1]:
            self.last = (seconds, tokens)
        return False

    def tokens_per_second(self):
        """None: too few steps to tell."""
        if self.first is None or self.last == self.first:
            return None
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])
