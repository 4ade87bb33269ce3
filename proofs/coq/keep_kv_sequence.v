(* KeepKV's successive merges (proofs/keep_kv.md): their changes add up, and with minimum norm their order does not
   matter. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm combination inner_product exponential divergence.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section Merging.
Variables (R : realFieldType) (e : exponential R) (ln : logarithm e) (K E : lmodType R) (dot : inner_product K) (q : K).

(* An entry: votes, the logarithm of its predicted score, key, value. *)
Definition entry : eqType := [eqType of (R * R * K * E)%type].
Definition votes (x : entry) : R := x.1.1.1.
Definition log_score (x : entry) : R := x.1.1.2.
Definition key (x : entry) : K := x.1.2.
Definition value (x : entry) : E := x.2.

Notation W s := (total_score e s votes log_score).
Notation P s := (total_votes s votes).
Notation KL s := (divergence ln s votes log_score).
Notation w := (scored e votes log_score).

(* The entry into which a list of entries merges by minimum norm for q, predicted by W/P. *)
Definition merge (s : seq entry) : entry :=
  (P s, log_mean_score ln s votes log_score,
   mean e s votes log_score key - (KL s / dot q q) *: q, mean e s votes log_score value).

Definition valid (s : seq entry) := s != [::] /\ forall x, x \in s -> 0 < votes x.

Let W_gt0 s : valid s -> 0 < W s. Proof. by case; exact: total_score_gt0. Qed.
Let P_gt0 s : valid s -> 0 < P s. Proof. by case; exact: total_votes_gt0. Qed.

Lemma merged_weight s : valid s -> w (merge s) = W s.
Proof.
move=> ok; have [W0 P0] := (W_gt0 ok, P_gt0 ok).
by rewrite /scored /= /votes /log_score /= exp_ln ?divr_gt0 // mulrC divfK ?gt_eqF.
Qed.

Lemma weighted_mean (M : lmodType R) (f : entry -> M) s : valid s ->
  W s *: mean e s votes log_score f = \sum_(x <- s) w x *: f x.
Proof.
move=> ok; rewrite /mean scaler_sumr; apply: eq_bigr => x _.
by rewrite scalerA /share mulrC divfK // gt_eqF ?W_gt0.
Qed.

Lemma weighted_mean_log s : valid s -> W s * mean_log_score e s votes log_score = \sum_(x <- s) w x * log_score x.
Proof.
move=> ok; rewrite /mean_log_score mulr_sumr; apply: eq_bigr => x _.
by rewrite mulrA /share [W s * _]mulrC divfK // gt_eqF ?W_gt0.
Qed.

Lemma divergence_of s : valid s ->
  KL s = mean_log_score e s votes log_score - log_mean_score ln s votes log_score.
Proof. by case; exact: divergence_by. Qed.

Section Split.
Variables (s t : seq entry).
Hypotheses (s_valid : valid s) (all_valid : valid (s ++ t)).

Let later := merge s :: t.

Lemma later_valid : valid later.
Proof.
split=> // x; rewrite in_cons => /predU1P[-> | x_t]; first exact: P_gt0.
by apply: (proj2 all_valid); rewrite mem_cat x_t orbT.
Qed.

Lemma later_votes : P later = P (s ++ t).
Proof. by rewrite /total_votes big_cons big_cat. Qed.

Lemma later_score : W later = W (s ++ t).
Proof. by rewrite /total_score big_cons big_cat /= merged_weight. Qed.

Lemma later_log_mean : log_mean_score ln later votes log_score = log_mean_score ln (s ++ t) votes log_score.
Proof. by rewrite /log_mean_score later_votes later_score. Qed.

(* The chain rule of the divergence. *)
Lemma chain : W (s ++ t) * KL (s ++ t) = W (s ++ t) * KL later + W s * KL s.
Proof.
have later_ok := later_valid.
rewrite -{2}later_score !divergence_of // !mulrBr !weighted_mean_log // later_log_mean.
rewrite big_cons big_cat /= merged_weight // later_score /=; move: (\sum_(i <- s) _) (\sum_(i <- t) _) => a b.
by rewrite {4}/log_score /=; ring.
Qed.

Lemma merge_again : merge later = merge (s ++ t).
Proof.
have later_ok := later_valid; have W0 : W (s ++ t) != 0 := lt0r_neq0 (W_gt0 all_valid).
rewrite /merge later_votes later_log_mean; congr (_, _, _, _).
  apply: (scalerI W0); rewrite !scalerBr -{1}later_score !weighted_mean //.
  rewrite big_cons big_cat /= merged_weight // {2}/key /= !scalerBr weighted_mean //.
  have chained : KL (s ++ t) = KL later + W s / W (s ++ t) * KL s.
    by apply: (mulfI W0); rewrite chain mulrDr; field.
  rewrite chained; move: (\sum_(i <- s) _) (\sum_(i <- t) _) => a b.
  move: (KL later) (KL s) (W s) (W (s ++ t)) (W0) (dot q q)^-1 => d c x y y0 square.
  by linear; field; rewrite y0.
apply: (scalerI W0); rewrite -{1}later_score !weighted_mean // big_cons big_cat /= merged_weight //.
by rewrite {2}/value /= weighted_mean.
Qed.
End Split.

Lemma merge_one x : 0 < votes x -> merge [:: x] = x.
Proof.
move=> x_gt0; have ok : valid [:: x] by split=> // y; rewrite mem_seq1 => /eqP ->.
have W_by : W [:: x] = w x by rewrite /total_score big_seq1.
have P_by : P [:: x] = votes x by rewrite /total_votes big_seq1.
have w0 : w x != 0 by rewrite -W_by gt_eqF ?W_gt0.
have log_by : log_mean_score ln [:: x] votes log_score = log_score x.
  by rewrite /log_mean_score W_by P_by /scored mulrAC mulfV ?mul1r ?ln_exp // gt_eqF.
have share_by : share e [:: x] votes log_score x = 1 by rewrite /share W_by mulfV.
have KL0 : KL [:: x] = 0.
  by rewrite divergence_of // log_by /mean_log_score big_seq1 share_by mul1r subrr.
rewrite /merge P_by log_by KL0 /mean !big_seq1 share_by !scale1r mul0r scale0r subr0.
by case: x {x_gt0 ok W_by P_by w0 log_by share_by KL0} => [[[]]].
Qed.

Lemma merge_perm s t : perm_eq s t -> merge s = merge t.
Proof.
move=> same.
have sums (M : zmodType) (f : entry -> M) : \sum_(x <- s) f x = \sum_(x <- t) f x := perm_big _ same.
have W_by : W s = W t := sums _ _; have P_by : P s = P t := sums _ _.
by rewrite /merge /log_mean_score /mean /divergence /share W_by P_by !sums.
Qed.

Lemma merge_one_by_one s x : (forall y, y \in x :: s -> 0 < votes y) ->
  foldl (fun r y => merge [:: r; y]) x s = merge (x :: s).
Proof.
move=> votes_gt0; rewrite -{1}(merge_one (votes_gt0 x (mem_head _ _))) -[x :: s]cat1s.
have : valid [:: x] by split=> // y; rewrite mem_seq1 => /eqP ->; rewrite votes_gt0 ?mem_head.
have : valid ([:: x] ++ s) by [].
elim: s [:: x] {votes_gt0} => [|y s IH] t all_ok t_ok /=; first by rewrite cats0.
have step_ok : valid (t ++ [:: y]).
  split=> [|z z_in]; first by case: (t).
  by apply: (proj2 all_ok); move: z_in; rewrite !mem_cat mem_seq1 in_cons => /orP[-> // | ->]; rewrite !orbT.
rewrite merge_again // IH -?catA //.
Qed.
End Merging.

(* kkv-sequence: The change of the output by successive merges is at most the sum of the changes by each, or of their
   bounds. If a cluster is merged by minimum norm for one query q, with the merged entry predicted by W/P, merging one
   by one, in any order, gives the same entry as merging all at once: key, value, votes and prediction; and so does
   merging a part of it first. *)
Theorem kkv_sequence (R : realFieldType) (e : exponential R) (ln : logarithm e) (K E : lmodType R)
    (dot : inner_product K) (q : K) :
  [/\ forall (N : seminorm E) (o : nat -> E) (bound : nat -> R) T,
        N (o T - o 0%N) <= \sum_(t < T) N (o t.+1 - o t) /\
        ((forall t, (t < T)%N -> N (o t.+1 - o t) <= bound t) -> N (o T - o 0%N) <= \sum_(t < T) bound t),
      forall (x : entry K E) s t, (forall y, y \in x :: s -> 0 < votes y) -> perm_eq (x :: s) t ->
        foldl (fun r y => merge ln dot q [:: r; y]) x s = merge ln dot q t &
      forall s t : seq (entry K E), s != [::] -> (forall x, x \in s ++ t -> 0 < votes x) ->
        merge ln dot q (merge ln dot q s :: t) = merge ln dot q (s ++ t)].
Proof.
split=> [N o bound T | x s t votes_gt0 same | s t some votes_gt0].
- have sum_le : N (o T - o 0%N) <= \sum_(t < T) N (o t.+1 - o t).
    elim: T => [|T IH]; first by rewrite subrr norm_zero big_ord0.
    rewrite big_ord_recr /= (_ : o T.+1 - o 0%N = (o T - o 0%N) + (o T.+1 - o T)); last by linear; ring.
    by apply: le_trans (norm_add _ _ _) _; rewrite ler_add2r.
  split=> // each; apply: le_trans sum_le _; apply: ler_sum => t _; exact: each.
- by rewrite merge_one_by_one //; exact: merge_perm.
apply: merge_again; split=> //.
- by move=> x x_s; apply: votes_gt0; rewrite mem_cat x_s.
by case: s some {votes_gt0}.
Qed.
