(* Two tactics. "linear" reduces an equation between linear combinations of vectors to equations of their coefficients,
   one for each vector, which "ring" or "field" solves; "nonnegative" shows that a number is not negative. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Inductive combination (R : Type) :=
  Vector of nat | Zero | Add of combination R & combination R | Opp of combination R | Scale of R & combination R.
Arguments Vector {R}.
Arguments Zero {R}.

Section Combination.
Variables (R : comRingType) (E : lmodType R) (vectors : seq E).

Fixpoint value (c : combination R) : E :=
  match c with
  | Vector n => nth 0 vectors n
  | Zero => 0
  | Add a b => value a + value b
  | Opp a => - value a
  | Scale x a => x *: value a
  end.

Fixpoint coefficient (c : combination R) (n : nat) : R :=
  match c with
  | Vector m => if Nat.eqb m n then 1 else 0
  | Zero => 0
  | Add a b => coefficient a n + coefficient b n
  | Opp a => - coefficient a n
  | Scale x a => x * coefficient a n
  end.

Fixpoint agree (a b : combination R) (n : nat) : Prop :=
  if n is m.+1 then coefficient a m = coefficient b m /\ agree a b m else True.

Lemma value_by c : value c = \sum_(i < size vectors) coefficient c i *: nth 0 vectors i.
Proof.
elim: c => [m||a by_a b by_b|a by_a|x a by_a] /=.
- have [m_in | m_out] := ltnP m (size vectors); last first.
    rewrite nth_default // big1 // => i _; case: PeanoNat.Nat.eqb_spec => [m_i | _]; last exact: scale0r.
    by rewrite m_i leqNgt ltn_ord in m_out.
  rewrite (bigD1 (Ordinal m_in)) //= PeanoNat.Nat.eqb_refl scale1r big1 ?addr0 // => i i_m.
  case: PeanoNat.Nat.eqb_spec => [m_i | _]; last exact: scale0r.
  by case/eqP: i_m; apply: val_inj.
- by rewrite big1 // => i _; exact: scale0r.
- by rewrite by_a by_b -big_split; apply: eq_bigr => i _; rewrite /= -scalerDl.
- by rewrite by_a -sumrN; apply: eq_bigr => i _; rewrite /= -scaleNr.
- by rewrite by_a scaler_sumr; apply: eq_bigr => i _; rewrite /= scalerA.
Qed.

Lemma value_agree a b : agree a b (size vectors) -> value a = value b.
Proof.
rewrite !value_by; elim: (size vectors) => [|n IH] /=; first by rewrite !big_ord0.
by move=> [same /IH]; rewrite !big_ord_recr /= => ->; rewrite same.
Qed.
End Combination.

Ltac find_vector x l :=
  lazymatch l with x :: _ => constr:(0%N) | _ :: ?t => let n := find_vector x t in constr:(n.+1) end.

Ltac vectors_of e l :=
  lazymatch e with
  | 0 => l
  | ?a + ?b => let l' := vectors_of a l in vectors_of b l'
  | - ?a => vectors_of a l
  | _ *: ?a => vectors_of a l
  | _ => match l with | context [e :: _] => l | _ => constr:(e :: l) end
  end.

Ltac combination_of e l :=
  lazymatch e with
  | 0 => uconstr:(Zero)
  | ?a + ?b => let a' := combination_of a l in let b' := combination_of b l in uconstr:(Add a' b')
  | - ?a => let a' := combination_of a l in uconstr:(Opp a')
  | ?c *: ?a => let a' := combination_of a l in uconstr:(Scale c a')
  | _ => let n := find_vector e l in uconstr:(Vector n)
  end.

Ltac linear :=
  lazymatch goal with
  | |- @eq ?E ?a ?b =>
    let l := vectors_of a (@nil E) in let l := vectors_of b l in
    let a' := combination_of a l in let b' := combination_of b l in
    refine (@value_agree _ _ l a' b' _); cbn [agree size coefficient Nat.eqb]; repeat split
  end.

(* Sums, products, powers and inverses of numbers that are not negative. *)
Ltac nonnegative :=
  try assumption;
  lazymatch goal with
  | |- is_true (0 <= _%:R) => exact: ler0n
  | |- is_true (0 <= 1) => exact: ler01
  | |- is_true (0 <= _ + _) => apply: addr_ge0; nonnegative
  | |- is_true (0 <= _ * _) => apply: mulr_ge0; nonnegative
  | |- is_true (0 <= _^-1) => rewrite invr_ge0; nonnegative
  | |- is_true (0 <= _ ^+ 2) => exact: sqr_ge0
  | |- is_true (0 <= _ ^+ _) => apply: exprn_ge0; nonnegative
  | |- _ => try by []
  end.
