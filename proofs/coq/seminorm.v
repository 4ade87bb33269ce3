(* Seminorms over a real field, and what all proofs need of them: the triangle inequality for sums. Every norm is a
   seminorm; so are the L1, L2 and L-infinity norms of a hidden state behind an output projection. *)
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Record seminorm (R : realFieldType) (E : lmodType R) := Seminorm {
  norm_of :> E -> R;
  norm_add : forall x y, norm_of (x + y) <= norm_of x + norm_of y;
  norm_scale : forall (c : R) x, norm_of (c *: x) = `|c| * norm_of x
}.

Section Seminorm.
Variables (R : realFieldType) (E : lmodType R) (N : seminorm E).

Lemma norm_zero : N 0 = 0.
Proof. by rewrite -(scale0r (0 : E)) norm_scale normr0 mul0r. Qed.

Lemma norm_opp x : N (- x) = N x.
Proof. by rewrite -scaleN1r norm_scale normrN1 mul1r. Qed.

Lemma norm_ge0 x : 0 <= N x.
Proof. by have := norm_add N x (- x); rewrite subrr norm_zero norm_opp -mulr2n pmulrn_lge0. Qed.

Lemma norm_sum (I : finType) (P : pred I) (f : I -> E) :
  N (\sum_(i | P i) f i) <= \sum_(i | P i) N (f i).
Proof.
elim/big_rec2: _ => [|i y x _ le_xy]; first by rewrite norm_zero.
by apply: le_trans (norm_add _ _ _) _; rewrite ler_add2l.
Qed.

Lemma norm_square c x : N (c *: x) ^+ 2 = c ^+ 2 * N x ^+ 2.
Proof. by rewrite norm_scale exprMn real_normK ?num_real. Qed.

Lemma norm_sub x y : `|N x - N y| <= N (x - y).
Proof.
have one a b : N a - N b <= N (a - b) by rewrite ler_subl_addr; have := norm_add N (a - b) b; rewrite subrK.
by rewrite ler_norml one ler_oppl opprB -(norm_opp (x - y)) opprB one.
Qed.

(* The norm of a combination is at most that of its terms. *)
Lemma norm_combination (I : finType) (P : pred I) (a : I -> R) (f : I -> E) :
  N (\sum_(i | P i) a i *: f i) <= \sum_(i | P i) `|a i| * N (f i).
Proof. by apply: le_trans (norm_sum _ _) _; apply: ler_sum => i _; rewrite norm_scale. Qed.
End Seminorm.
